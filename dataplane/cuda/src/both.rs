//! Two copy engines as one: the GPUs' for copies that touch their memory, another for the rest.

use railhead_core::port::{Copy, CopyDone, CopyEngine, CopyFull, Nanos, RegionIndex};

/// The copies between regions of the host go to `host`, all others to `gpus`, where there are any: a node without GPUs runs
/// the same code. Each of the two knows all regions that it needs: host memory that copies of GPUs may touch is installed in
/// both.
#[derive(Debug)]
pub struct BothCopiers<H, G> {
    /// Takes copies between memories of the host.
    pub host: H,
    /// Takes copies that touch a GPU's memory.
    pub gpus: Option<G>,
    /// Whether a slot holds memory of a GPU.
    of_gpu: Box<[bool]>,
    host_first: bool,
}

impl<H: CopyEngine, G: CopyEngine> BothCopiers<H, G> {
    /// Composes two engines whose tables have `regions` slots; all are of the host at first.
    pub fn new(host: H, gpus: Option<G>, regions: u32) -> Self {
        Self { host, gpus, of_gpu: vec![false; regions as usize].into(), host_first: false }
    }

    /// Says where the memory of a slot lies. Call it with every installation; copies that are posted keep their engine.
    ///
    /// # Panics
    /// If the slot is outside the table, or for a GPU's memory without GPUs.
    pub fn set_of_gpu(&mut self, region: RegionIndex, of_gpu: bool) {
        assert!(!of_gpu || self.gpus.is_some(), "memory of a GPU on a node without");
        self.of_gpu[region.0 as usize] = of_gpu;
    }

    /// Whether the memory of a slot is a GPU's.
    #[must_use]
    pub fn is_of_gpu(&self, region: RegionIndex) -> bool {
        self.of_gpu.get(region.0 as usize).copied().unwrap_or(false)
    }
}

impl<H: CopyEngine, G: CopyEngine> CopyEngine for BothCopiers<H, G> {
    fn copy(&mut self, copy: &Copy) -> Result<(), CopyFull> {
        let of_gpu = self.is_of_gpu(copy.from.region) || self.is_of_gpu(copy.to.region);
        match &mut self.gpus {
            Some(gpus) if of_gpu => gpus.copy(copy),
            _ => self.host.copy(copy),
        }
    }

    fn kick(&mut self, now: Nanos) {
        // GPUs first: what they do goes on while the host copies.
        if let Some(gpus) = &mut self.gpus {
            gpus.kick(now);
        }
        self.host.kick(now);
    }

    fn poll(&mut self, now: Nanos, done: &mut [CopyDone]) -> usize {
        let Some(gpus) = &mut self.gpus else { return self.host.poll(now, done) };
        // Turn about, so that neither fills the slice for ever.
        self.host_first = !self.host_first;
        if self.host_first {
            let count = self.host.poll(now, done);
            count + gpus.poll(now, &mut done[count..])
        } else {
            let count = gpus.poll(now, done);
            count + self.host.poll(now, &mut done[count..])
        }
    }

    fn is_busy(&self) -> bool {
        self.host.is_busy() || self.gpus.as_ref().is_some_and(CopyEngine::is_busy)
    }
}
