//! Tag-matched messages on this ABI (ops/adr/0003): a receiver groups up to 8 receives into one clear-to-send, which is
//! a write with an event; a sender matches by tag and writes straight to the place that it was told, with an event that
//! says which receive it was and how long. Nothing of the dataplane knows about tags.

use std::collections::{HashMap, VecDeque};

use railhead_abi::Code;
use railhead_abi::submission::{CLASS_BULK, CLASS_LATENCY, NOTIFY_EVENT, SessionEvent, Submission};
use railhead_sim::Rng;

mod rig;
use rig::{Node, Rig, tables};

/// Receives of one group, at most.
const GROUP_MAX: usize = 8;
/// Groups that may be open at once: the slots of the table of clear-to-sends.
const GROUPS_OPEN: u64 = 2;
/// Bytes of an entry: tag, offset, capacity.
const ENTRY_BYTES: usize = 24;
/// Bytes of a clear-to-send: a count, then its entries.
const CLEAR_BYTES: usize = 8 + GROUP_MAX * ENTRY_BYTES;
/// Where messages begin in both regions; the table is before.
const MESSAGES: usize = 4096;

/// One receive: which tag, where to, how many bytes at most.
#[derive(Debug, Clone, Copy)]
struct Receive {
    tag: u64,
    offset: usize,
    capacity: usize,
}

/// The receiving side: `irecv` and `test`.
#[derive(Default)]
struct Receiver {
    next_group: u64,
    /// Bytes received, by group; `None` is still to come.
    open: HashMap<u64, Vec<Option<usize>>>,
}

impl Receiver {
    /// Posts a group of receives; `None` while too many are open.
    fn irecv(&mut self, node: &mut Node<'_>, receives: &[Receive]) -> Option<u64> {
        assert!(receives.len() <= GROUP_MAX);
        let group = self.next_group;
        // A slot is used again when its group is done: then the sender has read it.
        if group >= GROUPS_OPEN && self.open.contains_key(&(group - GROUPS_OPEN)) {
            return None;
        }
        self.next_group += 1;
        let slot = usize::try_from(group % GROUPS_OPEN).expect("few slots") * CLEAR_BYTES;
        let mut clear = (receives.len() as u64).to_le_bytes().to_vec();
        for receive in receives {
            for word in [receive.tag, receive.offset as u64, receive.capacity as u64] {
                clear.extend(word.to_le_bytes());
            }
        }
        node.source.write(slot, &clear);
        let rest = Submission {
            class: CLASS_LATENCY,
            notify: NOTIFY_EVENT,
            notify_value: group,
            ..Submission::default()
        };
        node.write(slot, slot, clear.len(), rest);
        self.open.insert(group, vec![None; receives.len()]);
        Some(group)
    }

    /// Something arrived: bits 0 to 7 of the value say which receive of which group.
    fn arrived(&mut self, event: &SessionEvent) {
        let (group, index) = (event.value >> 8, usize::try_from(event.value & 0xff).expect("8 bits"));
        let entry = &mut self.open.get_mut(&group).expect("an open group")[index];
        assert_eq!(*entry, None, "a receive completes once");
        *entry = Some(usize::try_from(event.bytes).expect("small"));
    }

    /// The sizes of a group that is done.
    fn test(&mut self, group: u64) -> Option<Vec<usize>> {
        let sizes: Option<Vec<usize>> = self.open.get(&group)?.iter().copied().collect();
        if sizes.is_some() {
            self.open.remove(&group);
        }
        sizes
    }
}

/// The sending side: `isend` and `test`.
#[derive(Default)]
struct Sender {
    next_send: u64,
    /// Receives that are clear to send to, by tag, oldest first.
    clear: HashMap<u64, VecDeque<(u64, Receive)>>,
    /// Sends that wait for a receive, by tag, oldest first: cookie, offset, bytes.
    waiting: HashMap<u64, VecDeque<(u64, usize, usize)>>,
    done: HashMap<u64, Code>,
}

impl Sender {
    fn isend(&mut self, node: &mut Node<'_>, tag: u64, offset: usize, bytes: usize) -> u64 {
        let cookie = self.next_send;
        self.next_send += 1;
        self.waiting.entry(tag).or_default().push_back((cookie, offset, bytes));
        self.matches(node, tag);
        cookie
    }

    /// A clear-to-send came: reads it from the table.
    fn cleared(&mut self, node: &mut Node<'_>, event: &SessionEvent) {
        let at = usize::try_from(event.offset).expect("small");
        let word = |node: &Node<'_>, at: usize| {
            let mut bytes = [0; 8];
            node.destination.read(at, &mut bytes);
            usize::try_from(u64::from_le_bytes(bytes)).expect("small")
        };
        for index in 0..word(node, at) {
            let entry = at + 8 + index * ENTRY_BYTES;
            let (tag, offset, capacity) =
                (word(node, entry) as u64, word(node, entry + 8), word(node, entry + 16));
            let receive = Receive { tag, offset, capacity };
            self.clear.entry(tag).or_default().push_back((event.value << 8 | index as u64, receive));
            self.matches(node, tag);
        }
    }

    fn matches(&mut self, node: &mut Node<'_>, tag: u64) {
        let (clear, waiting) = (self.clear.entry(tag).or_default(), self.waiting.entry(tag).or_default());
        while let (Some((value, receive)), Some((cookie, offset, bytes))) = (clear.front(), waiting.front()) {
            assert!(*bytes <= receive.capacity, "a message longer than its receive");
            let rest = Submission {
                class: CLASS_BULK,
                cookie: *cookie,
                notify: NOTIFY_EVENT,
                notify_value: *value,
                ..Submission::default()
            };
            node.write(*offset, receive.offset, *bytes, rest);
            clear.pop_front();
            waiting.pop_front();
        }
    }

    fn test(&self, cookie: u64) -> bool {
        self.done.get(&cookie).is_some_and(|status| *status == Code::Ok)
    }
}

/// Both sides over two nodes: node 0 sends, node 1 receives.
struct Pair<'s> {
    rig: Rig<'s>,
    sender: Sender,
    receiver: Receiver,
}

impl Pair<'_> {
    fn step(&mut self) {
        self.rig.step();
        let [sending, receiving] = &mut self.rig.nodes;
        while let Some(event) = sending.event() {
            self.sender.cleared(sending, &event);
        }
        while let Some(completion) = sending.completion() {
            let status = Code::from_number(completion.status).expect("a known code");
            let twice = self.sender.done.insert(completion.cookie, status);
            assert_eq!(twice, None, "a send completes once");
        }
        while let Some(event) = receiving.event() {
            self.receiver.arrived(&event);
        }
        while let Some(completion) = receiving.completion() {
            assert_eq!(completion.status, 0, "a clear-to-send failed");
        }
    }
}

const MESSAGE_MAX: usize = 70_000;

/// `groups` of 8 receives each; sends come in another order, some before and some after their receive.
fn exchange(seed: u64) {
    let mut rng = Rng::new(seed);
    let (mut first, mut second) = (tables(), tables());
    let bytes = MESSAGES + 2 * GROUP_MAX * MESSAGE_MAX;
    let rig = Rig::new(seed, bytes, [&mut first, &mut second]);
    let mut pair = Pair { rig, sender: Sender::default(), receiver: Receiver::default() };
    for round in 0..6 {
        let base = MESSAGES + (round % 2) * GROUP_MAX * MESSAGE_MAX;
        // Few tags, so that several receives of a group share one and are matched in order.
        let tags: Vec<u64> = (0..GROUP_MAX).map(|_| rng.below(4)).collect();
        let receives: Vec<Receive> = tags
            .iter()
            .enumerate()
            .map(|(index, tag)| Receive {
                tag: *tag,
                offset: base + index * MESSAGE_MAX,
                capacity: MESSAGE_MAX,
            })
            .collect();
        let mut order: Vec<usize> = (0..GROUP_MAX).collect();
        for at in (1..GROUP_MAX).rev() {
            order.swap(at, rng.index(at + 1));
        }
        let early = rng.index(GROUP_MAX + 1);
        let mut sent: HashMap<u64, VecDeque<Vec<u8>>> = HashMap::new();
        let mut cookies = Vec::new();
        let mut send = |pair: &mut Pair<'_>, index: usize, rng: &mut Rng| {
            let size = *rng.pick(&[0, 1, 100, 4096, 20_000, MESSAGE_MAX]);
            let mut message = vec![0; size];
            rng.fill(&mut message);
            let offset = base + index * MESSAGE_MAX;
            let node = &mut pair.rig.nodes[0];
            node.source.write(offset, &message);
            cookies.push(pair.sender.isend(node, tags[index], offset, size));
            sent.entry(tags[index]).or_default().push_back(message);
        };
        for index in &order[..early] {
            send(&mut pair, *index, &mut rng);
        }
        (0..rng.below(200)).for_each(|_| pair.step());
        let group = pair.receiver.irecv(&mut pair.rig.nodes[1], &receives).expect("a free slot");
        (0..rng.below(200)).for_each(|_| pair.step());
        for index in &order[early..] {
            send(&mut pair, *index, &mut rng);
        }
        let sizes = (0..200_000).find_map(|_| {
            pair.step();
            pair.receiver.test(group)
        });
        let sizes = sizes.expect("a group of receives completes");
        for (receive, size) in receives.iter().zip(sizes) {
            let message =
                sent.get_mut(&receive.tag).and_then(VecDeque::pop_front).expect("one send a receive");
            assert_eq!(size, message.len());
            assert!(
                pair.rig.nodes[1].destination.holds_bytes(receive.offset, &message),
                "tag {}",
                receive.tag
            );
        }
        for _ in 0..200_000 {
            if cookies.iter().all(|cookie| pair.sender.test(*cookie)) {
                break;
            }
            pair.step();
        }
        assert!(cookies.iter().all(|cookie| pair.sender.test(*cookie)), "every send completes");
    }
}

#[test]
fn grouped_receives_get_what_their_tags_say() {
    (0..20).for_each(exchange);
}

#[test]
fn a_send_waits_for_its_receive() {
    let (mut first, mut second) = (tables(), tables());
    let rig = Rig::new(1, MESSAGES * 2, [&mut first, &mut second]);
    let mut pair = Pair { rig, sender: Sender::default(), receiver: Receiver::default() };
    let cookie = pair.sender.isend(&mut pair.rig.nodes[0], 7, MESSAGES, 100);
    (0..5_000).for_each(|_| pair.step());
    assert!(!pair.sender.test(cookie), "nothing is sent that nobody receives");
    let wrong = Receive { tag: 8, offset: MESSAGES, capacity: 100 };
    let right = Receive { tag: 7, offset: MESSAGES + 200, capacity: 100 };
    let group = pair.receiver.irecv(&mut pair.rig.nodes[1], &[wrong, right]).expect("a free slot");
    (0..5_000).for_each(|_| pair.step());
    assert!(pair.sender.test(cookie));
    assert_eq!(pair.receiver.test(group), None, "tag 8 was not sent");
    pair.sender.isend(&mut pair.rig.nodes[0], 8, MESSAGES, 50);
    (0..5_000).for_each(|_| pair.step());
    assert_eq!(pair.receiver.test(group), Some(vec![50, 100]));
}
