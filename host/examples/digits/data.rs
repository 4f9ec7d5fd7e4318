//! The handwritten digits: read, checked, and divided into those to learn from and those to be tested on.

use flate2::read::GzDecoder;

use congruent_example_kernels::digits::{CLASSES, PIXELS};

/// The file, compressed, in the program: its PEs may start in any folder. `data/SOURCE.md` says where it is from.
static FILE: &[u8] = include_bytes!("data/digits.csv.gz");

/// The ink in a cell is a number from 0 to this.
const DARKEST: u8 = 16;

/// Every fifth digit is for the test.
const TEST_EVERY: usize = 5;

/// Images, row after row of [`PIXELS`] numbers from 0 to 1, and what digit each of them shows.
#[derive(Default)]
pub(crate) struct Digits {
    /// The pixels of all images.
    pub(crate) pixels: Vec<f32>,
    /// The digit on each image.
    pub(crate) labels: Vec<u8>,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    /// Not compressed text of comma-separated values.
    #[error("digits.csv.gz: {0}")]
    Csv(#[from] csv::Error),
    /// A line that is no digit.
    #[error("digits.csv.gz, line {line}: expected {PIXELS} numbers up to {DARKEST} and a digit")]
    Line {
        /// Which line.
        line: usize,
    },
}

impl Digits {
    fn push(&mut self, line: usize, fields: &[u8]) -> Result<(), DataError> {
        let Some((&label, pixels)) = fields.split_last() else { return Err(DataError::Line { line }) };
        if pixels.len() != PIXELS || usize::from(label) >= CLASSES || pixels.iter().any(|&ink| ink > DARKEST) {
            return Err(DataError::Line { line });
        }
        self.pixels.extend(pixels.iter().map(|&ink| f32::from(ink) / f32::from(DARKEST)));
        self.labels.push(label);
        Ok(())
    }
}

/// The digits to learn from, and those to be tested on.
pub(crate) fn load() -> Result<(Digits, Digits), DataError> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(GzDecoder::new(FILE));
    let (mut train, mut test) = (Digits::default(), Digits::default());
    for (i, fields) in reader.deserialize::<Vec<u8>>().enumerate() {
        let part = if i % TEST_EVERY == 0 { &mut test } else { &mut train };
        part.push(i + 1, &fields?)?;
    }
    Ok((train, test))
}
