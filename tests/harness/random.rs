//! Randomness that can be had again: splitmix64, from a seed that the test prints.

/// A sequence of numbers that its seed determines.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// From the environment variable where it is set, else from the hash keys that the kernel gave this process.
    pub(crate) fn from_environment(variable: &str) -> Self {
        use std::hash::{BuildHasher as _, RandomState};
        let named = std::env::var(variable).ok().map(|seed| seed.parse().expect("the seed is a number"));
        let seed = named.unwrap_or_else(|| RandomState::new().hash_one(variable));
        eprintln!("{variable}={seed}");
        Self(seed)
    }

    /// The seed, before anything was drawn.
    pub(crate) fn seed(&self) -> u64 {
        self.0
    }

    /// A sequence of its own, for a task of its own: how tasks interleave does not change what each draws.
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

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// The bytes up to any place before the end.
pub(crate) fn truncated(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    bytes[..below(bytes.len(), random)].to_vec()
}

/// The bytes with any one bit the other way.
pub(crate) fn flipped(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    with_a_flip(bytes, below(bytes.len() * 8, random))
}

/// The bytes with this bit the other way.
pub(crate) fn with_a_flip(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes
}

fn below(bound: usize, random: &mut Random) -> usize {
    usize::try_from(random.below(bound as u64)).expect("it is below a usize")
}
