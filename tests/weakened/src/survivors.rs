//! The table of programs that nothing shows to be weakened.

use congruent_virtual_gpu::Mutant;

/// Rows of `survivors.txt`: what is taken away, of which instruction, in which function or kernels, whether a call comes to it, and
/// why nothing notices it. In words `*` stands for anything. The first row that fits counts.
pub(crate) struct Survivors(Vec<Row>);

struct Row {
    loss: String,
    instruction: String,
    place: String,
    reached: String,
    reason: String,
}

impl Survivors {
    /// Reads a table.
    ///
    /// # Errors
    /// The first line that is no row
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let row = |line: &str| match *line.split('|').map(str::trim).collect::<Vec<_>>() {
            [loss, instruction, place, reached, reason] => {
                let [loss, instruction, place, reached, reason] =
                    [loss, instruction, place, reached, reason].map(str::to_owned);
                Ok(Row { loss, instruction, place, reached, reason })
            }
            _ => Err(format!("survivors.txt: give five columns: {line}")),
        };
        lines.map(row).collect::<Result<_, _>>().map(Self)
    }

    /// Why nothing notices it, if that is known.
    pub(crate) fn reason(&self, mutant: &Mutant, reached: bool) -> Option<&str> {
        let fitting = self.0.iter().find(|row| {
            fits(&row.loss, &mutant.loss.to_string())
                && fits(&row.instruction, &mutant.instruction)
                && (fits(&row.place, &mutant.function) || mutant.kernels.iter().all(|kernel| fits(&row.place, kernel)))
                && fits(&row.reached, word(reached))
        });
        fitting.map(|row| row.reason.as_str())
    }
}

/// What the table says of whether a call comes to a place.
pub(crate) fn word(reached: bool) -> &'static str {
    if reached { "reached" } else { "not reached" }
}

fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, end)) => text.strip_prefix(start).is_some_and(|rest| {
            end.is_empty() || rest.char_indices().any(|(at, _)| fits(end, &rest[at..])) || fits(end, "")
        }),
    }
}
