//! What lies where on the heaps, so that a fault names objects of the program instead of offsets.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use congruent_collectives::PlanWord;
use congruent_device::Element;

/// The symmetric objects of a world, by their offsets.
#[derive(Default)]
pub(crate) struct Objects(Mutex<BTreeMap<u64, Object>>);

struct Object {
    name: Option<String>,
    /// Its type, without its path.
    of: &'static str,
    element: usize,
    len: usize,
    at: &'static Location<'static>,
    use_for: Use,
}

/// What an object is for, if it is none of the program's own.
#[derive(Clone)]
pub(crate) enum Use {
    /// What the program makes of it.
    Program,
    /// A plan, which knows its words.
    Plan(Arc<dyn Fn(u64) -> Option<PlanWord> + Send + Sync>),
    /// Words of a team's barrier.
    Barrier,
    /// Words of the world's.
    World,
}

/// An awaited word, as a fault names it.
#[derive(Clone, Debug)]
pub(crate) struct NamedWord {
    /// The word and its object: ``element 3 of `halo` (SymVec<u64>, 16 elements, made at src/main.rs:12:30)``.
    pub(crate) text: String,
    /// What it is to a plan.
    pub(crate) of_plan: Option<PlanWord>,
}

impl Objects {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Object>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object of `len` elements was made at a line of the program.
    pub(crate) fn made<T: Element>(&self, offset: u64, len: usize, at: &'static Location<'static>) {
        let path = std::any::type_name::<T>();
        let of = if path.contains('<') { path } else { path.rsplit("::").next().unwrap_or(path) };
        let object = Object { name: None, of, element: size_of::<T>().max(1), len, at, use_for: Use::Program };
        self.all().insert(offset, object);
    }

    /// The object at an offset has a name.
    pub(crate) fn named(&self, offset: u64, name: &str) {
        if let Some(object) = self.all().get_mut(&offset) {
            object.name = Some(name.to_owned());
        }
    }

    /// The object at an offset is for something of the library's.
    pub(crate) fn used(&self, offset: u64, use_for: Use) {
        if let Some(object) = self.all().get_mut(&offset) {
            object.use_for = use_for;
        }
    }

    /// The object at an offset is no more.
    pub(crate) fn gone(&self, offset: u64) {
        self.all().remove(&offset);
    }

    /// The word at an offset.
    pub(crate) fn word(&self, offset: u64) -> Option<NamedWord> {
        let all = self.all();
        let (start, object) = all.range(..=offset).next_back()?;
        let Object { name, of, element, len, at, use_for } = object;
        let index = usize::try_from(offset - start).ok()? / element;
        if index >= *len {
            return None;
        }
        let quoted = name.as_ref().map(|name| format!("`{name}`"));
        let word = match use_for {
            Use::Program => None,
            Use::World => return Some(NamedWord { text: "a word of the world's barrier".to_owned(), of_plan: None }),
            Use::Barrier => {
                let whose = quoted.unwrap_or("a team".into());
                return Some(NamedWord {
                    text: format!("a word of the barrier of {whose}, made at {at}"),
                    of_plan: None,
                });
            }
            Use::Plan(word) => word(offset),
        };
        let text = match (word, quoted) {
            (Some(word), quoted) => format!("{word} of {}, made at {at}", quoted.unwrap_or("a plan".into())),
            (None, Some(name)) => format!("element {index} of {name} (SymVec<{of}>, {len} elements, made at {at})"),
            (None, None) => format!("element {index} of a SymVec<{of}> of {len} elements, made at {at}"),
        };
        Some(NamedWord { text, of_plan: word })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_told_by_its_object() {
        let objects = Objects::default();
        let at = Location::caller();
        objects.made::<u64>(4096, 16, at);
        objects.made::<u32>(8192, 4, at);
        objects.named(4096, "halo");
        let told = |offset| objects.word(offset).map(|word| word.text);
        assert_eq!(told(4096 + 24), Some(format!("element 3 of `halo` (SymVec<u64>, 16 elements, made at {at})")));
        assert_eq!(told(8192 + 12), Some(format!("element 3 of a SymVec<u32> of 4 elements, made at {at}")));
        assert_eq!([0, 4096 + 128, 8192 + 16].map(told), [None, None, None]);
        objects.gone(4096);
        assert_eq!(told(4096 + 24), None);
    }
}
