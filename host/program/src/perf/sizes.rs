//! Sizes on the command line, and the sweep they describe.

use crate::failure::Failure;

/// The sweep: from a size to a size, by a factor or a step.
#[derive(clap::Args)]
pub(crate) struct SizeArgs {
    /// Smallest message, bytes (K, M, G may follow) [default: 8]
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = parse)]
    minbytes: Option<u64>,
    /// Largest message, bytes [default: 64M; 4M for ping-pong]
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = parse)]
    maxbytes: Option<u64>,
    /// Each size is the one before times this
    #[arg(short = 'f', long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..))]
    stepfactor: u64,
    /// Each size is the one before plus this, instead
    #[arg(short = 'i', long, value_name = "SIZE", value_parser = parse, conflicts_with = "stepfactor")]
    stepbytes: Option<u64>,
}

/// More rows than anyone reads: a mistake such as `-e 1G -i 1`.
const MOST_ROWS: usize = 10_000;

impl SizeArgs {
    /// The sizes, where the user left the ends open from `first` to `last`. Each is a multiple of `unit` bytes, rounded down,
    /// but at least that: one element of `element` bytes, of each part where there are several.
    pub(super) fn sweep(&self, first: u64, last: u64, element: u64, unit: u64) -> Result<Vec<u64>, Failure> {
        let first = self.minbytes.unwrap_or(first.max(element));
        let last = self.maxbytes.unwrap_or(last.max(first));
        if first < element {
            return Err(Failure::Usage(format!("-b {first}: one element has {element} bytes, give at least that")));
        }
        if last < first {
            return Err(Failure::Usage(format!("-e {last} is less than -b {first}: give a larger -e or a smaller -b")));
        }
        if self.stepbytes == Some(0) {
            return Err(Failure::Usage("-i 0: give at least 1 byte".to_owned()));
        }
        let next = |&size: &u64| match self.stepbytes {
            Some(step) => size.checked_add(step),
            None => size.checked_mul(self.stepfactor),
        };
        let sizes = std::iter::successors(Some(first), next).take_while(|&size| size <= last).take(MOST_ROWS + 1);
        let mut sizes: Vec<u64> = sizes.map(|size| (size - size % unit).max(unit)).collect();
        if sizes.len() > MOST_ROWS {
            return Err(Failure::Usage(format!("that makes more than {MOST_ROWS} rows: give a larger -i")));
        }
        sizes.dedup();
        Ok(sizes)
    }
}

/// `64`, `64K`, `64M`, `1G`, also with `B`, `KB` and `KiB` as people write them; a K is 1024.
fn parse(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return Err("expected bytes, such as 64, 64K, 64M or 1G".to_owned()),
    };
    let number = number.parse::<u64>().map_err(|_| "expected bytes, such as 64, 64K, 64M or 1G".to_owned())?;
    number.checked_mul(1 << shift).filter(|&bytes| bytes <= 1 << 40).ok_or_else(|| "at most 1024G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(minbytes: Option<u64>, maxbytes: Option<u64>, stepfactor: u64, stepbytes: Option<u64>) -> SizeArgs {
        SizeArgs { minbytes, maxbytes, stepfactor, stepbytes }
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("8", 8), ("8B", 8), ("2k", 2048), ("64M", 64 << 20), ("1GiB", 1 << 30), ("3mb", 3 << 20)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "-1", "1T", "1.5M", "8 M", "99999999999999999999", "2000G"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_sweep_goes_from_end_to_end_in_whole_elements() {
        assert_eq!(args(None, None, 2, None).sweep(8, 64, 4, 4).unwrap(), [8, 16, 32, 64]);
        assert_eq!(args(Some(10), Some(100), 3, None).sweep(8, 64, 4, 4).unwrap(), [8, 28, 88]);
        assert_eq!(args(Some(8), Some(12), 2, Some(1)).sweep(8, 64, 4, 4).unwrap(), [8, 12]);
        assert_eq!(args(Some(128), None, 2, None).sweep(8, 64, 4, 4).unwrap(), [128]);
        assert_eq!(args(Some(4), Some(200), 4, None).sweep(8, 64, 4, 12).unwrap(), [12, 60]);
        assert_eq!(args(Some(1 << 40), Some(u64::MAX), 1 << 40, None).sweep(8, 64, 4, 4).unwrap(), [1 << 40]);
    }

    #[test]
    fn what_describes_no_sweep_is_refused() {
        for (args, complaint) in [
            (args(Some(0), None, 2, None), "-b 0"),
            (args(Some(2), None, 2, None), "one element has 4 bytes"),
            (args(Some(64), Some(8), 2, None), "-e 8 is less than -b 64"),
            (args(None, None, 2, Some(0)), "-i 0"),
            (args(None, Some(1 << 30), 2, Some(1)), "10000 rows"),
        ] {
            let refused = args.sweep(8, 64, 4, 4).unwrap_err();
            assert!(refused.to_string().contains(complaint), "{refused}");
        }
    }
}
