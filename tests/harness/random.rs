//! Reproducible randomness: splitmix64, from a seed that the test prints.

/// A sequence of numbers that its seed determines.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// Takes the seed from the environment variable if set, otherwise from the hash keys that the kernel gave this
    /// process.
    pub(crate) fn from_environment(variable: &str) -> Self {
        use std::hash::{BuildHasher as _, RandomState};
        let named = std::env::var(variable).ok().map(|seed| seed.parse().expect("the seed is a number"));
        let seed = named.unwrap_or_else(|| RandomState::new().hash_one(variable));
        eprintln!("{variable}={seed}");
        Self(seed)
    }

    /// Returns the seed of the whole sequence.
    pub(crate) fn seed(&self) -> u64 {
        self.0
    }

    /// Returns a separate sequence for a task. The interleaving of tasks then does not change the numbers of each
    /// task.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Returns the bytes up to a random place before the end.
pub(crate) fn truncated(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    bytes[..below(bytes.len(), random)].to_vec()
}

/// Returns the bytes with one random bit inverted.
pub(crate) fn flipped(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    with_a_flip(bytes, below(bytes.len() * 8, random))
}

/// Returns the bytes with this bit inverted.
pub(crate) fn with_a_flip(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes
}

fn below(bound: usize, random: &mut Random) -> usize {
    usize::try_from(random.below(bound as u64)).expect("it is below a usize")
}
