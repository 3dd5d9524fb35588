use super::*;

fn close(left: f64, right: f64) -> bool {
    (left - right).abs() < 1e-9
}

#[test]
fn interval_of_fifteen_pairs_leaves_three_out_on_each_side() {
    let samples: Vec<f64> = (1..=15).rev().map(f64::from).collect();
    let interval = interval(&samples).expect("samples");
    assert_eq!((interval.low, interval.median, interval.high), (4.0, 8.0, 12.0));
    // 1 - 2 (1 + 15 + 105 + 455) / 2^15
    assert!(close(interval.coverage, 1.0 - 2.0 * 576.0 / 32768.0), "{interval:?}");
}

#[test]
fn five_samples_are_the_fewest_that_cover_ninety_percent() {
    let five = interval(&[3.0, 1.0, 2.0, 5.0, 4.0]).expect("samples");
    assert_eq!((five.low, five.median, five.high), (1.0, 3.0, 5.0));
    assert!(close(five.coverage, 0.9375));
    let three = interval(&[3.0, 1.0, 2.0]).expect("samples");
    assert_eq!((three.low, three.high), (1.0, 3.0));
    assert!(close(three.coverage, 0.75));
    let one = interval(&[3.0]).expect("a sample");
    assert!(close(one.coverage, 0.0));
    assert_eq!(interval(&[]), None);
}

#[test]
fn even_counts_have_their_median_between_two_samples() {
    assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    assert_eq!(median(&[]), None);
}

#[test]
fn quantiles_are_samples() {
    let samples: Vec<f64> = (1..=200).map(f64::from).collect();
    assert_eq!(quantile(&samples, 0.99), Some(198.0));
    assert_eq!(quantile(&samples, 1.0), Some(200.0));
    assert_eq!(quantile(&samples, 0.0), Some(1.0));
    assert_eq!(quantile(&[], 0.5), None);
}

#[test]
fn verdict_needs_the_whole_interval() {
    let interval = |low, median, high| Interval { low, median, high, coverage: 0.9 };
    let at_least = |low, median, high| verdict(Goal::AtLeast(0.85), Some(&interval(low, median, high)));
    assert_eq!(at_least(0.85, 0.9, 0.95), Verdict::Ok);
    assert_eq!(at_least(0.84, 0.9, 0.95), Verdict::Unsure);
    assert_eq!(at_least(0.7, 0.8, 0.85), Verdict::Unsure);
    let reaches = |low, high| {
        verdict(Goal::Reaches { at: 1.0, least: 0.9 }, Some(&interval(low, f64::midpoint(low, high), high)))
    };
    assert_eq!(reaches(0.9, 1.0), Verdict::Ok);
    assert_eq!(reaches(1.1, 1.2), Verdict::Ok);
    assert_eq!(reaches(0.89, 1.1), Verdict::Unsure);
    assert_eq!(reaches(0.95, 0.99), Verdict::Short);
    assert_eq!(at_least(0.7, 0.8, 0.849), Verdict::Short);
    let below = |low, median, high| verdict(Goal::Below(5.0), Some(&interval(low, median, high)));
    assert_eq!(below(1.0, 2.0, 4.9), Verdict::Ok);
    assert_eq!(below(1.0, 2.0, 5.0), Verdict::Unsure);
    assert_eq!(below(5.0, 6.0, 7.0), Verdict::Short);
    assert_eq!(verdict(Goal::Below(5.0), None), Verdict::NotRun);
}
