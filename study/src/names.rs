//! Names of files and folders.

/// Whether every file system takes a character in a name.
pub(crate) fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || "-_.".contains(c)
}

/// A text with a hyphen in place of every character that is not plain.
pub(crate) fn plain(text: &str) -> String {
    text.replace(|c| !is_plain(c), "-")
}

/// The name, or the first of `name-2`, `name-3` and so on that is not taken.
pub(crate) fn free(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let mut free = name.to_string();
    let mut number = 1;
    while is_taken(&free) {
        number += 1;
        free = format!("{name}-{number}");
    }
    free
}
