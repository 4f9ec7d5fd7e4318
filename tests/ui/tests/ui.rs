//! Mistakes that the compiler catches: each file in `mistakes/` is one, beside what the compiler says to it.
//!
//! Where a message changes on purpose, `TRYBUILD=overwrite cargo test -p congruent-ui-tests` writes it anew.

#[test]
fn mistakes_that_do_not_compile() {
    trybuild::TestCases::new().compile_fail("mistakes/*.rs");
}
