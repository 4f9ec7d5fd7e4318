//! What `CONGRUENT_DEBUG` shows, on standard error.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber, dispatcher, subscriber};

use super::{Subsystem, Tunables, Verbosity};

/// Writes events from here on, if `CONGRUENT_DEBUG` asks for any and the program has no subscriber of its own. The first
/// world of a process decides.
pub(crate) fn start(tunables: &Tunables) {
    static TOLD: Once = Once::new();
    let verbosity = Verbosity::of(tunables);
    if verbosity.detail().is_some() && !dispatcher::has_been_set() {
        // Where another thread was faster, its subscriber stays.
        let _first = subscriber::set_global_default(Printer(verbosity));
    }
    TOLD.call_once(|| tunables.tell());
}

/// Warns of what whoever runs the program should know without asking: on standard error where nothing else takes events.
pub(crate) fn warn(text: &str) {
    if dispatcher::has_been_set() {
        tracing::warn!(target: "congruent::init", "{text}");
    } else {
        let _whoever_reads_it_has_gone = writeln!(io::stderr(), "congruent: WARN init: {text}");
    }
}

/// A line for each event that is let through.
struct Printer(Verbosity);

impl Subscriber for Printer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.0.allows(metadata)
    }

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        let (metadata, Said { message, fields }) = (event.metadata(), said);
        let (level, part) = (metadata.level(), Subsystem::of(metadata.target()));
        let _whoever_reads_it_has_gone = writeln!(io::stderr(), "congruent: {level} {part}: {message}{fields}");
    }

    // There are no spans: none is enabled.
    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

/// An event's sentence, and what it adds.
#[derive(Default)]
struct Said {
    message: String,
    fields: String,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _a_string_takes_all = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
