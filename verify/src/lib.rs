//! Checks device code without a GPU: the PTX linter.
