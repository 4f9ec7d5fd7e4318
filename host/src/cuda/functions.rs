//! Where the functions of PTX are: a text of megabytes is gone through once in a process, however many kernels of it are used.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

/// The text of each function that has a body, by name: from its directive to that of the next function.
pub struct Functions<'t> {
    text: &'t str,
    /// Where the first one is declared.
    first: usize,
    by_name: HashMap<&'t str, &'t str>,
}

impl Functions<'static> {
    /// Of an image, which is known by its address.
    pub fn of(image: &'static str) -> Arc<Self> {
        static ALL: Mutex<Vec<(&str, Arc<Functions<'static>>)>> = Mutex::new(Vec::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = all.iter().find(|(known, _)| std::ptr::eq(*known, image)) {
            return Arc::clone(known);
        }
        let found = Arc::new(Functions::find(image));
        all.push((image, Arc::clone(&found)));
        found
    }
}

impl<'t> Functions<'t> {
    /// Goes through a text.
    pub(super) fn find(text: &'t str) -> Self {
        let heads: Vec<_> = heads(text).collect();
        let ends = heads.iter().skip(1).map(|(start, _)| *start).chain([text.len()]);
        let functions = heads.iter().zip(ends).map(|(&(start, name), end)| (name, &text[start..end]));
        // A declaration ends before there is a body.
        let has_body = |text: &str| text.find(['{', ';']).is_some_and(|end| text[end..].starts_with('{'));
        let by_name = functions.filter(|(_, function)| has_body(function)).collect();
        Self { text, first: heads.first().map_or(text.len(), |(start, _)| *start), by_name }
    }

    pub(super) fn get(&self, name: &str) -> Option<&'t str> {
        self.by_name.get(name).copied()
    }

    /// A function that is a kernel.
    pub(super) fn entry(&self, name: &str) -> Option<&'t str> {
        self.get(name).filter(|function| function.split('{').next().is_some_and(|head| head.contains(".entry")))
    }

    /// The names of the kernels, in no order.
    pub fn entries(&self) -> impl Iterator<Item = &'t str> {
        self.by_name.keys().copied().filter(|name| self.entry(name).is_some())
    }

    /// For each call in a function, those that it may be of: none where it is by a pointer, or of what is defined elsewhere.
    pub(super) fn calls(&self, function: &'t str) -> impl Iterator<Item = Vec<&'t str>> {
        let calls = function.lines().filter(|line| words(line).any(|word| word == "call"));
        calls.map(|line| words(line).filter(|word| self.by_name.contains_key(word)).collect())
    }

    /// A text with nothing but a kernel and what it calls, each function behind those that it calls.
    pub fn program(&self, kernel: &str) -> Option<String> {
        let entry = self.entry(kernel)?;
        // Constants stand anywhere between functions, each in a line.
        let is_constant = |line: &&str| line.starts_with(".global");
        let (head, rest) = self.text.split_at(self.first);
        let mut text: String = [head].into_iter().chain(rest.split_inclusive('\n').filter(is_constant)).collect();
        let (mut open, mut seen) = (vec![(kernel, entry, false)], HashSet::new());
        while let Some((name, function, has_all)) = open.pop() {
            if has_all {
                text.extend(function.split_inclusive('\n').filter(|line| !is_constant(line)));
            } else if seen.insert(name) {
                open.push((name, function, true));
                let called = self.calls(function).flatten().filter(|name| !seen.contains(name));
                open.extend(called.filter_map(|name| Some((name, self.get(name)?, false))));
            }
        }
        Some(text)
    }
}

/// Where the directive of each function begins, and the function's name.
fn heads(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = [0].into_iter().chain(text.match_indices('\n').map(|(at, _)| at + 1));
    lines.filter_map(|start| {
        let rest = text[start..].trim_start_matches([' ', '\t']);
        let line = rest.strip_prefix('.').and_then(|_| rest.lines().next())?;
        let rest = [".entry", ".func"].iter().find_map(|word| Some(line.split_once(word)?.1))?.trim_start();
        // What a function returns stands before its name.
        let rest = if rest.starts_with('(') { rest.split_once(')').map_or("", |(_, rest)| rest) } else { rest };
        Some((start, words(rest).next().unwrap_or_default()))
    })
}

/// The names and numbers in a text.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || "_$%".contains(c))).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_with_a_body_are_found_in_any_order() {
        let text = ".version 8.0\n.func  (.param .b64 r) later\n(\n.param .b64 p\n)\n;\n\
            \t.visible .entry one(.param .u64 p) .maxntid 32 { ret; }\n// .entry none() {}\n\
            .func (.param .b64 r) later(\n.param .b64 p)\n{\nret;\n}\n.extern .func gone();\n";
        let functions = Functions::find(text);
        assert!(functions.entry("one").is_some_and(|one| one.ends_with("// .entry none() {}\n")));
        assert!(functions.get("later").is_some_and(|later| later.ends_with("ret;\n}\n")));
        assert!(["later", "none", "gone", "on", ""].iter().all(|name| functions.entry(name).is_none()));
    }

    #[test]
    fn a_kernel_comes_behind_what_it_calls() {
        let text = ".version 8.0\n.func low() { ret; }\n.func other() { ret; }\n.global .u8 words[2];\n.func high() {\ncall low;\nret; }\n\
            .entry one() {\ncall high, ();\ncall low, ();\n}\n.entry two() {}\n";
        let functions = Functions::find(text);
        let one = functions.program("one").unwrap();
        let places = ["low() {", "high() {", ".entry one()"].map(|part| one.find(part).unwrap());
        assert!(one.starts_with(".version 8.0\n") && places.is_sorted(), "{one}");
        assert_eq!(one.matches(".global .u8 words[2];").count(), 1, "{one}");
        assert!(!one.contains("other") && !one.contains("two") && functions.program("low").is_none());
        let mut entries: Vec<_> = functions.entries().collect();
        entries.sort_unstable();
        assert_eq!(entries, ["one", "two"]);
    }

    #[test]
    fn an_image_is_gone_through_once() {
        static TEXT: &str = ".entry one() { ret; }";
        assert!(Arc::ptr_eq(&Functions::of(TEXT), &Functions::of(TEXT)));
    }
}
