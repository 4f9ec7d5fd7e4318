//! Where the axes of a plot begin and end, where they are marked, and with what words.

use std::ops::Range;

/// Most marks on an axis of sizes: more labels than these touch each other.
const MOST_SIZES: u32 = 9;
/// Most decades of an axis that is marked between the powers of ten as well.
const FEW_DECADES: f64 = 2.5;

/// The least and the greatest of these values; `None` of no values.
pub(super) fn ends(values: impl Iterator<Item = f64>) -> Option<Range<f64>> {
    values.fold(None, |ends, value| {
        let Range { start, end } = ends.unwrap_or(value..value);
        Some(start.min(value)..end.max(value))
    })
}

/// Room on both sides of a logarithmic axis, so that no marker is cut off and the shortest axis has a mark.
pub(super) fn widen(ends: Range<f64>) -> Range<f64> {
    let ratio = ends.end / ends.start;
    let factor = if ratio < 4.0 { 2.0 } else { ratio.powf(0.03).max(1.2) };
    ends.start / factor..ends.end * factor
}

/// Marks of an axis of sizes: powers of two, at distances that are powers of two themselves.
pub(super) fn powers_of_two(ends: &Range<f64>) -> Vec<f64> {
    let (first, last) = (ends.start.log2().ceil() as i32, ends.end.log2().floor() as i32);
    let strides = std::iter::successors(Some(1), |stride| Some(2 * stride));
    let stride = strides.take(6).find(|stride| last.abs_diff(first) / stride < MOST_SIZES).unwrap_or(64);
    (first..=last).step_by(stride as usize).map(|power| 2f64.powi(power)).collect()
}

/// Marks of a logarithmic axis: powers of ten, and twice and five times these on a short axis.
pub(super) fn decades(ends: &Range<f64>) -> Vec<f64> {
    let (first, last) = (ends.start.log10().floor() as i32, ends.end.log10().ceil() as i32);
    let factors: &[f64] = if (ends.end / ends.start).log10() > FEW_DECADES { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let marks = (first..=last).flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
    marks.filter(|mark| (ends.start..=ends.end).contains(mark)).collect()
}

/// Bytes as people write them: `4 B`, `1 KiB`, `64 MiB`.
pub(super) fn bytes(value: &f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = *value;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", plain(&value), units[unit])
}

/// A number without digits that say nothing.
pub(super) fn plain(value: &f64) -> String {
    let digits = (2 - value.abs().max(1e-9).log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        let words = [4.0, 1024.0, 1536.0, 1000.0, 65536.0, 67108864.0, 2f64.powi(42)].map(|value| bytes(&value));
        assert_eq!(words, ["4 B", "1 KiB", "1.5 KiB", "1000 B", "64 KiB", "64 MiB", "4 TiB"]);
    }

    #[test]
    fn numbers_keep_three_digits() {
        let words = [0.0, 0.1, 0.25, 1.0, 7.5, 12.34, 1000.0, 10000.0, 0.001].map(|value| plain(&value));
        assert_eq!(words, ["0", "0.1", "0.25", "1", "7.5", "12.3", "1000", "10000", "0.001"]);
    }

    #[test]
    fn sizes_are_marked_at_equal_distances() {
        let words: Vec<String> = powers_of_two(&(4.0..67108864.0)).iter().map(bytes).collect();
        assert_eq!(words, ["4 B", "64 B", "1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB"]);
        for last in 3..=40 {
            let marks = powers_of_two(&(4.0..2f64.powi(last)));
            assert!(marks.len() <= MOST_SIZES as usize, "{marks:?}");
        }
        assert_eq!(powers_of_two(&(4.0..64.0)), [4.0, 8.0, 16.0, 32.0, 64.0]);
        assert!(powers_of_two(&(1000.0..1010.0)).is_empty());
    }

    #[test]
    fn long_axes_are_marked_at_decades_and_short_ones_between_them() {
        assert_eq!(decades(&(0.3..40000.0)), [1.0, 10.0, 100.0, 1000.0, 10000.0]);
        assert_eq!(decades(&(3.0..30.0)), [5.0, 10.0, 20.0]);
    }

    #[test]
    fn an_axis_of_one_value_has_a_length_and_marks() {
        for value in [1.0, 3.0, 8.0, 999.0] {
            let ends = widen(ends([value].into_iter()).unwrap());
            assert!(ends.start < value && value < ends.end, "{ends:?}");
            assert!(!powers_of_two(&ends).is_empty() && !decades(&ends).is_empty(), "{ends:?}");
        }
        assert_eq!(ends(std::iter::empty()), None);
    }
}
