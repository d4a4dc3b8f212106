//! Rust as a list of tokens: what the rules about texts in the code, and the reference pages, are made from.
//!
//! In: the text of a file. Out: words, string literals with their values, documentation comments and punctuation; other comments are
//! gone. No file of the tree and no text makes it panic: a literal that does not end ends with the file. syn would know the
//! grammar; here a few patterns are enough, and they read macros, whose arguments have no grammar.

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// An identifier, a keyword, a number, or a character in its quotes.
    Word(String),
    /// The value of a string literal.
    Text(String),
    /// A line of a documentation comment of an item (`///`).
    Doc(String),
    /// Any other character.
    Mark(char),
}

impl Token {
    /// True for this word.
    #[must_use]
    pub fn is_word(&self, word: &str) -> bool {
        matches!(self, Token::Word(own) if own == word)
    }

    /// True for this character.
    #[must_use]
    pub fn is_mark(&self, mark: char) -> bool {
        *self == Token::Mark(mark)
    }

    /// The word.
    #[must_use]
    pub fn word(&self) -> Option<&str> {
        match self {
            Token::Word(word) => Some(word),
            _ => None,
        }
    }

    /// The value of a string literal.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Token::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// The tokens of a file.
#[must_use]
pub fn tokens(text: &str) -> Vec<Token> {
    let mut lexer = Lexer { chars: text.chars().collect(), at: 0, found: Vec::new() };
    while lexer.at < lexer.chars.len() {
        lexer.step();
    }
    lexer.found
}

/// The tokens without items that are for tests alone.
#[must_use]
pub fn product(all: &[Token]) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < all.len() {
        if let Some(behind) = for_tests(all, at) {
            at = behind;
        } else {
            kept.push(all[at].clone());
            at += 1;
        }
    }
    kept
}

/// The place behind an item with `#[cfg(test)]` that begins at `at`.
fn for_tests(all: &[Token], at: usize) -> Option<usize> {
    let marks = ['#', '[', ' ', '(', ' ', ')', ']'];
    let attribute = all.get(at..at + marks.len())?;
    let fits = attribute.iter().zip(marks).all(|(token, mark)| mark == ' ' || token.is_mark(mark));
    if !fits || !attribute[2].is_word("cfg") || !attribute[4].is_word("test") {
        return None;
    }
    let mut behind = at + marks.len();
    while let Some(token) = all.get(behind) {
        match token {
            Token::Mark(';') => return Some(behind + 1),
            Token::Mark('{') => return Some(closing(all, behind) + 1),
            Token::Mark('(' | '[') => behind = closing(all, behind) + 1,
            // The end of what the item is in: a field or a statement without a semicolon.
            Token::Mark(')' | ']' | '}') => return Some(behind),
            _ => behind += 1,
        }
    }
    Some(behind)
}

/// The place of the bracket that closes the one at `open`; the last token if none does.
#[must_use]
pub fn closing(all: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in all.iter().enumerate().skip(open) {
        match token {
            Token::Mark('(' | '[' | '{') => depth += 1,
            Token::Mark(')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    all.len().saturating_sub(1)
}

/// The parts between the commas outside of brackets. A last comma ends a part, and begins none.
#[must_use]
pub fn parts(all: &[Token]) -> Vec<&[Token]> {
    let mut found = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at < all.len() {
        match all[at] {
            Token::Mark('(' | '[' | '{') => at = closing(all, at),
            Token::Mark(',') => {
                found.push(&all[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    if start < all.len() {
        found.push(&all[start..]);
    }
    found
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    found: Vec<Token>,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            (Some(c), _) if c.is_whitespace() => self.at += 1,
            (Some('/'), Some('/')) => self.line_comment(),
            (Some('/'), Some('*')) => self.block_comment(),
            (Some('"'), _) => self.string(),
            (Some('\''), _) => self.quote(),
            (Some(c), _) if c.is_alphanumeric() || c == '_' => self.word(c.is_ascii_digit()),
            (Some(c), _) => {
                self.found.push(Token::Mark(c));
                self.at += 1;
            }
            (None, _) => {}
        }
    }

    fn line_comment(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.at += 1;
        }
        let line: String = self.chars[start..self.at].iter().collect();
        if let Some(doc) = line.strip_prefix("///").filter(|doc| !doc.starts_with('/')) {
            self.found.push(Token::Doc(doc.trim().to_owned()));
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        while let Some(c) = self.peek(0) {
            match (c, self.peek(1)) {
                ('/', Some('*')) => (depth, self.at) = (depth + 1, self.at + 2),
                ('*', Some('/')) => (depth, self.at) = (depth - 1, self.at + 2),
                _ => self.at += 1,
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// A literal with escapes, from its first quotation mark on.
    fn string(&mut self) {
        self.at += 1;
        let mut value = String::new();
        while let Some(c) = self.peek(0) {
            self.at += 1;
            match c {
                '"' => break,
                '\\' => self.escape(&mut value),
                c => value.push(c),
            }
        }
        self.found.push(Token::Text(value));
    }

    /// What follows a backslash.
    fn escape(&mut self, value: &mut String) {
        let Some(c) = self.peek(0) else { return };
        self.at += 1;
        match c {
            'n' => value.push('\n'),
            't' => value.push('\t'),
            'r' => value.push('\r'),
            '0' => value.push('\0'),
            'x' => {
                let digits: String = self.chars.iter().skip(self.at).take(2).collect();
                self.at += digits.chars().count();
                value.extend(u8::from_str_radix(&digits, 16).ok().map(char::from));
            }
            'u' => {
                let digits: String = self.chars.iter().skip(self.at + 1).take_while(|c| **c != '}').collect();
                self.at += digits.chars().count() + 2;
                value.extend(u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32));
            }
            '\n' => {
                while self.peek(0).is_some_and(char::is_whitespace) {
                    self.at += 1;
                }
            }
            c => value.push(c),
        }
    }

    /// A character or the mark of a lifetime.
    fn quote(&mut self) {
        let escaped = self.peek(1) == Some('\\');
        if !escaped && self.peek(2) != Some('\'') {
            self.found.push(Token::Mark('\''));
            self.at += 1;
            return;
        }
        let start = self.at;
        // The quote behind a backslash is not the last one.
        self.at += if escaped { 3 } else { 2 };
        while self.peek(0).is_some_and(|c| c != '\'' && c != '\n') {
            self.at += 1;
        }
        self.at = (self.at + 1).min(self.chars.len());
        self.found.push(Token::Word(self.chars[start..self.at].iter().collect()));
    }

    fn word(&mut self, number: bool) {
        let start = self.at;
        while self.peek(0).is_some_and(|c| {
            let fraction = number && c == '.' && self.peek(1).is_some_and(|c| c.is_ascii_digit());
            c.is_alphanumeric() || c == '_' || fraction
        }) {
            self.at += 1;
        }
        let word: String = self.chars[start..self.at].iter().collect();
        match word.as_str() {
            "b" | "c" if self.peek(0) == Some('"') => self.string(),
            "b" if self.peek(0) == Some('\'') => self.quote(),
            "r" | "br" | "cr" => self.raw(word),
            _ => self.found.push(Token::Word(word)),
        }
    }

    /// A literal without escapes, if one follows the word.
    fn raw(&mut self, word: String) {
        let hashes = self.chars.iter().skip(self.at).take_while(|c| **c == '#').count();
        if self.peek(hashes) != Some('"') {
            self.found.push(Token::Word(word));
            return;
        }
        self.at += hashes + 1;
        let mut value = String::new();
        while let Some(c) = self.peek(0) {
            self.at += 1;
            if c == '"'
                && self.chars.iter().skip(self.at).take(hashes).filter(|c| **c == '#').count() == hashes
            {
                self.at += hashes;
                break;
            }
            value.push(c);
        }
        self.found.push(Token::Text(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens in one line: texts in angle brackets, documentation in braces.
    fn shown(text: &str) -> String {
        let words = tokens(text).into_iter().map(|token| match token {
            Token::Word(word) => word,
            Token::Text(text) => format!("<{text}>"),
            Token::Doc(line) => format!("{{{line}}}"),
            Token::Mark(mark) => mark.to_string(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn words_marks_and_documentation() {
        assert_eq!(
            shown("/// A thing.\npub fn a_1(x: &'static str) {}"),
            "{A thing.} pub fn a_1 ( x : & ' static str ) { }"
        );
        assert_eq!(shown("//! Header\n//// none\nx /* a /* b */ \" */ y"), "x y");
        assert_eq!(
            shown("1..=5, 0.25, 'a', '\\'', b'\\\\', '\"' z"),
            "1 . . = 5 , 0.25 , 'a' , '\\'' , '\\\\' , '\"' z"
        );
    }

    #[test]
    fn values_of_strings() {
        assert_eq!(shown(r#"("a \"b\" // c", b"d")"#), "( <a \"b\" // c> , <d> )");
        assert_eq!(shown("\"one \\\n      two\\u{e9}\\x41\\n\""), "<one twoéA\n>");
        assert_eq!(shown("r#\"a \"b\" \\n\"# r\"c\" raw"), "<a \"b\" \\n> <c> raw");
    }

    #[test]
    fn what_does_not_end_ends_with_the_file() {
        for (text, expected) in [
            ("\"abc", "<abc>"),
            ("r#\"abc\"", "<abc\">"),
            ("/* abc", ""),
            ("'", "'"),
            ("'\\", "'\\"),
            ("\"\\", "<>"),
            ("\"\\u{12", "<\u{12}>"),
            ("\"\\x4", "<\u{4}>"),
            ("'ab", "' ab"),
            ("b'", "'"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn brackets_and_parts() {
        let all = tokens("(a, [b, c], d(e, f),)");
        assert_eq!(closing(&all, 0), all.len() - 1);
        assert_eq!(parts(&all[1..all.len() - 1]).len(), 3);
        assert_eq!(closing(&tokens("(a"), 0), 1);
        assert!(parts(&[]).is_empty());
    }

    #[test]
    fn items_for_tests_are_left_out() {
        let text = "fn a() {} #[cfg(test)] mod tests { fn b() { c; } } #[cfg(test)] use d::{e}; #[cfg(unix)] fn f() {}";
        let kept: Vec<String> =
            product(&tokens(text)).iter().filter_map(|t| t.word().map(str::to_owned)).collect();
        assert_eq!(kept, ["fn", "a", "cfg", "unix", "fn", "f"]);
        assert_eq!(product(&tokens("struct A { #[cfg(test)] b: u8 } c")).len(), 5);
    }
}
