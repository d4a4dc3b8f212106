//! An error with its causes on one line, for messages and logs.
//!
//! In: an error. Out: text. Invariant: a cause whose words end the text so far is left out; some libraries repeat their source in their own
//! message. A cause whose words are elsewhere in the text stays: a path may contain them. `anyhow` prints chains too, but init and the agent's libraries have typed errors and do not link it.

use std::error::Error;

/// The error and its causes, with `: ` between them.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Layer(&'static str, #[source] Option<Box<Layer>>);

    #[test]
    fn causes_follow_and_repetitions_do_not() {
        let of = |texts: &[&'static str]| {
            let inner = |below, text: &&'static str| Some(Box::new(Layer(text, below)));
            chain(&*texts.iter().rev().fold(None, inner).unwrap())
        };
        assert_eq!(of(&["read /a"]), "read /a");
        assert_eq!(of(&["read /a", "open", "no such file"]), "read /a: open: no such file");
        assert_eq!(of(&["read /a: open", "open", "no such file"]), "read /a: open: no such file");
        assert_eq!(of(&["read /a: open: no such file", "open: no such file"]), "read /a: open: no such file");
        // A path with the cause's words in it says nothing of the cause.
        assert_eq!(of(&["read /timeout/a", "timeout"]), "read /timeout/a: timeout");
        assert_eq!(of(&["read /timeout", "open", "timeout"]), "read /timeout: open: timeout");
    }
}
