//! What the examples of attention have in common.

#[cfg(not(target_arch = "nvptx64"))]
use congruent_device::Pack;

pub use congruent_fused::attention::Four;

/// Numbers of a query, a key or a value.
pub const WIDTH: usize = 64;
/// What scores are multiplied by: one over the root of the width.
pub(crate) const SCALE: f32 = 0.125;
const _: () = assert!(SCALE * SCALE * WIDTH as f32 == 1.0);
/// Fours of a row.
pub const FOURS: usize = WIDTH / 4;
/// A query, a key or a value.
pub type Row = congruent_fused::attention::Row<FOURS>;
/// The answer to a query.
pub type Answer = congruent_fused::attention::Answer<FOURS>;

/// Rows of numbers from -2 to 2 that look like chance.
#[cfg(not(target_arch = "nvptx64"))]
pub fn rows(seed: u64, count: usize) -> Vec<Row> {
    let mut i = seed << 32;
    let mut number = || {
        i += 1;
        (crate::gups::random(i) >> 40) as f32 / (1 << 22) as f32 - 2.0
    };
    (0..count).map(|_| core::array::from_fn(|_| Pack::from_fn(|_| number()))).collect()
}

/// The numbers of a row.
#[cfg(not(target_arch = "nvptx64"))]
pub fn numbers(row: &[Four]) -> impl Iterator<Item = f64> + Clone + '_ {
    row.iter().flat_map(|four| four.0).map(f64::from)
}

/// The answer to a query over keys and their values, in `f64`.
#[cfg(not(target_arch = "nvptx64"))]
pub fn exact_answer<'r>(query: &Row, met: impl Iterator<Item = (&'r Row, &'r Row)> + Clone) -> Vec<f64> {
    let score = |key: &Row| numbers(query).zip(numbers(key)).map(|(q, k)| q * k).sum::<f64>() * f64::from(SCALE);
    let most = met.clone().map(|(key, _)| score(key)).fold(f64::NEG_INFINITY, f64::max);
    let (mut sums, mut total) = (vec![0.0; WIDTH], 0.0);
    for (key, value) in met {
        let weight = (score(key) - most).exp();
        total += weight;
        sums.iter_mut().zip(numbers(value)).for_each(|(sum, v)| *sum += weight * v);
    }
    sums.into_iter().map(|sum| sum / total).collect()
}
