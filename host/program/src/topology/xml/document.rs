//! A file's elements with their attributes, and what is wrong with them.

use std::fmt;

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

use super::VERSION;
use crate::topology::pci::address;

/// The deepest that elements may lie in each other; machines need ten.
const DEEPEST: usize = 64;

/// The most elements; NCCL takes 256 for each host.
const MOST: usize = 8192;

/// Why a file could not be read.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum ReadError {
    /// It is no XML.
    #[error("{at}: {reason}; the file must be XML as NCCL writes it with NCCL_TOPO_DUMP_FILE")]
    Syntax { at: Position, reason: String },
    /// It is XML of another kind.
    #[error("{at}: expected <system version=\"{VERSION}\">, found {found}; NCCL writes it with NCCL_TOPO_DUMP_FILE")]
    NotATopology { at: Position, found: String },
    /// An attribute is not there.
    #[error("{at}: <{element}> lacks the attribute {attribute}; add it")]
    Missing { at: Position, element: &'static str, attribute: &'static str },
    /// An attribute has a value that cannot be.
    #[error("{at}: {attribute}=\"{value}\" of <{element}> is not {wanted}; correct it")]
    Value { at: Position, element: &'static str, attribute: &'static str, value: String, wanted: &'static str },
    /// An element is where it has no meaning.
    #[error("{at}: <{element}> cannot be in <{parent}>; see the order of elements in a file that NCCL wrote")]
    Misplaced { at: Position, element: String, parent: String },
}

/// Where in a file, both from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Position {
    pub(crate) line: usize,
    /// In characters.
    pub(crate) column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// An element as it stands in the file.
pub(super) struct Element {
    pub(super) name: String,
    pub(super) at: Position,
    attributes: Vec<(String, String)>,
    pub(super) children: Vec<Element>,
}

/// Reads the one element that is in no other, with all that is in it.
pub(super) fn parse(text: &str) -> Result<Element, ReadError> {
    Parser::new(text).document()
}

struct Parser<'t> {
    text: &'t str,
    reader: Reader<&'t [u8]>,
    /// What was last asked for, and where in the text it is: elements are asked for in their order.
    last: (usize, Position),
}

impl<'t> Parser<'t> {
    fn new(text: &'t str) -> Self {
        let mut reader = Reader::from_str(text);
        let config = reader.config_mut();
        config.expand_empty_elements = true;
        config.enable_all_checks(true);
        Self { text, reader, last: (0, Position { line: 1, column: 1 }) }
    }

    fn document(mut self) -> Result<Element, ReadError> {
        let mut open: Vec<Element> = Vec::new();
        let (mut root, mut count) = (None, 0);
        loop {
            let start = self.reader.buffer_position();
            let event = match self.reader.read_event() {
                Ok(event) => event,
                Err(error) => return Err(self.syntax(self.reader.error_position(), &error.to_string())),
            };
            match event {
                Event::Start(tag) => {
                    if root.is_some() {
                        return Err(self.syntax(start, "a second element stands beside the first"));
                    }
                    if open.len() == DEEPEST {
                        return Err(self.syntax(start, &format!("elements lie more than {DEEPEST} deep")));
                    }
                    count += 1;
                    if count > MOST {
                        return Err(self.syntax(start, &format!("there are more than {MOST} elements")));
                    }
                    open.push(self.element(start, &tag)?);
                }
                Event::End(_) => {
                    let Some(done) = open.pop() else { return Err(self.syntax(start, "an end without a start")) };
                    match open.last_mut() {
                        Some(parent) => parent.children.push(done),
                        None => root = Some(done),
                    }
                }
                Event::Text(text) if text.trim().is_empty() => {}
                Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
                Event::Text(_) | Event::CData(_) | Event::GeneralRef(_) => {
                    return Err(self.syntax(start, "text stands where only elements can"));
                }
                Event::DocType(_) => return Err(self.syntax(start, "a document type is not accepted")),
                Event::Eof => break,
                Event::Empty(_) => return Err(self.syntax(start, "an element that was not expanded")),
            }
        }
        if let Some(element) = open.pop() {
            return Err(self.syntax(self.text.len() as u64, &format!("<{}> is not closed", element.name)));
        }
        root.ok_or_else(|| self.syntax(0, "there is no element"))
    }

    fn element(&mut self, start: u64, tag: &BytesStart<'_>) -> Result<Element, ReadError> {
        let mut attributes = Vec::new();
        for attribute in tag.attributes() {
            let attribute = attribute.map_err(|error| self.syntax(start, &error.to_string()))?;
            let value = attribute.normalized_value(XmlVersion::Implicit1_0);
            let value = value.map_err(|error| self.syntax(start, &error.to_string()))?;
            attributes.push((self.shown(start, attribute.key.as_ref())?, self.shown(start, &value)?));
        }
        let (name, at) = (self.shown(start, tag.name().as_ref())?, self.position(start));
        Ok(Element { name, at, attributes, children: Vec::new() })
    }

    /// What is read will be shown, so it must hold nothing that a terminal obeys.
    fn shown(&mut self, start: u64, text: &str) -> Result<String, ReadError> {
        match text.contains(char::is_control) {
            true => Err(self.syntax(start, &format!("{text} holds a control character"))),
            false => Ok(text.to_owned()),
        }
    }

    fn syntax(&mut self, offset: u64, reason: &str) -> ReadError {
        let shown = |letter: char| if letter.is_control() { letter.escape_debug().to_string() } else { letter.into() };
        let reason = reason.chars().map(shown).collect();
        ReadError::Syntax { at: self.position(offset), reason }
    }

    fn position(&mut self, offset: u64) -> Position {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(self.text.len());
        let (from, mut at) = if offset < self.last.0 { (0, Position { line: 1, column: 1 }) } else { self.last };
        for &byte in self.text.as_bytes().get(from..offset).unwrap_or_default() {
            match byte {
                b'\n' => at = Position { line: at.line + 1, column: 1 },
                // Inside a letter of several bytes.
                0x80..0xc0 => {}
                _ => at.column += 1,
            }
        }
        self.last = (offset, at);
        at
    }
}

impl Element {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// An attribute's text; what is empty is unknown.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| !value.is_empty()).map(str::to_owned)
    }

    pub(super) fn required(&self, element: &'static str, attribute: &'static str) -> Result<String, ReadError> {
        self.text(attribute).ok_or(ReadError::Missing { at: self.at, element, attribute })
    }

    /// An attribute's value, read by `read`.
    pub(super) fn parsed<T>(
        &self,
        element: &'static str,
        attribute: &'static str,
        wanted: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, ReadError> {
        let Some(value) = self.text(attribute) else { return Ok(None) };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => Err(ReadError::Value { at: self.at, element, attribute, value, wanted }),
        }
    }

    pub(super) fn number<N: std::str::FromStr>(
        &self,
        element: &'static str,
        attribute: &'static str,
    ) -> Result<Option<N>, ReadError> {
        self.parsed(element, attribute, "a number from 0", |value| value.trim().parse().ok())
    }

    /// A number where -1, or less, says that it is not known.
    pub(super) fn number_or_unknown(
        &self,
        element: &'static str,
        attribute: &'static str,
    ) -> Result<Option<u32>, ReadError> {
        let number =
            self.parsed(element, attribute, "a number, or -1 for unknown", |value| value.trim().parse::<i64>().ok())?;
        Ok(number.and_then(|number| u32::try_from(number).ok()))
    }

    pub(super) fn flag(&self, element: &'static str, attribute: &'static str) -> Result<Option<bool>, ReadError> {
        Ok(self.number_or_unknown(element, attribute)?.map(|flag| flag != 0))
    }

    pub(super) fn address(&self, element: &'static str, attribute: &'static str) -> Result<String, ReadError> {
        let value = self.required(element, attribute)?;
        let is_address = value.bytes().all(|letter| letter.is_ascii_hexdigit() || matches!(letter, b':' | b'.'));
        if !is_address {
            let wanted = "a bus address such as 0000:18:00.0";
            return Err(ReadError::Value { at: self.at, element, attribute, value, wanted });
        }
        Ok(address(&value))
    }

    /// Skips what is not known. What is known must be where it belongs, lest a device be lost without a word.
    pub(super) fn pass_over(self, parent: &str) -> Result<(), ReadError> {
        let Self { name, at, .. } = self;
        match &*name {
            "system" | "cpu" | "pci" | "gpu" | "nvlink" | "nic" | "net" => {
                Err(ReadError::Misplaced { at, element: name, parent: parent.to_owned() })
            }
            _ => Ok(()),
        }
    }
}
