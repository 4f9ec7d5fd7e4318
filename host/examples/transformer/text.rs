//! The text, as numbers of characters, and the model that a transformer has to be better than.

use congruent_example_kernels::transformer::VOCABULARY;

/// The first chapter of "Alice's Adventures in Wonderland" by Lewis Carroll (Macmillan, 1865), without its heading. It is in the public
/// domain.
static TEXT: &str = include_str!("alice.txt");

/// Characters of their own, behind the letters. All others are one.
const MARKS: &str = " \n,.'";

/// Which part of the text is held out, at its end: one in so many characters.
const HELD_OUT: usize = 6;

/// The part of the text to learn from, and the part to be tested on. A letter is the same whether it is large or small.
pub(crate) fn load() -> (Vec<u8>, Vec<u8>) {
    let mut characters: Vec<u8> = TEXT
        .chars()
        .map(|c| match c.to_ascii_lowercase() {
            letter @ 'a'..='z' => letter as u8 - b'a',
            other => 26 + MARKS.find(other).unwrap_or(MARKS.len()) as u8,
        })
        .collect();
    let held_out = characters.split_off(characters.len() - characters.len() / HELD_OUT);
    (characters, held_out)
}

/// The mean loss of a bigram model: of each pair of characters how often it is in `training`, and one more.
pub(crate) fn bigram_loss(training: &[u8], pairs: impl Iterator<Item = (u8, u8)>) -> f64 {
    let mut counts = vec![[1.0_f64; VOCABULARY]; VOCABULARY];
    for pair in training.windows(2) {
        counts[usize::from(pair[0])][usize::from(pair[1])] += 1.0;
    }
    let loss = |(this, next): (u8, u8)| {
        let row = &counts[usize::from(this)];
        -(row[usize::from(next)] / row.iter().sum::<f64>()).ln()
    };
    let losses: Vec<f64> = pairs.map(loss).collect();
    losses.iter().sum::<f64>() / losses.len() as f64
}
