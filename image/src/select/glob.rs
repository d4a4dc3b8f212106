//! Path patterns: `*` and `?` stay inside a directory, `**` crosses directories, `{a,b}` chooses.
//!
//! Why no crate: `globset` brings a regex engine for these few lines. Why not shared: init's patterns (`plan::modules`) are the
//! kernel's, with `[0-9]`, and a star in the names of test cases crosses slashes.

/// Expands every `{a,b}` into the patterns it stands for.
#[must_use]
pub fn expand(pattern: &str) -> Vec<String> {
    let Some(open) = pattern.find('{') else { return vec![pattern.to_owned()] };
    let mut depth = 0;
    let mut cuts = vec![open];
    for (i, c) in pattern.char_indices().skip(open) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => cuts.push(i),
            _ => {}
        }
        if depth == 0 {
            cuts.push(i);
            let (head, tail) = (&pattern[..open], &pattern[i + 1..]);
            return cuts
                .windows(2)
                .flat_map(|w| expand(&format!("{head}{}{tail}", &pattern[w[0] + 1..w[1]])))
                .collect();
        }
    }
    vec![pattern.to_owned()]
}

/// Whether `path` is covered by `pattern` (without braces).
#[must_use]
pub fn matches(pattern: &str, path: &str) -> bool {
    walk(pattern.as_bytes(), path.as_bytes())
}

fn walk(pattern: &[u8], path: &[u8]) -> bool {
    match pattern {
        [] => path.is_empty(),
        [b'*', b'*', rest @ ..] => (0..=path.len()).any(|i| walk(rest, &path[i..])),
        [b'*', rest @ ..] => {
            let end = path.iter().position(|b| *b == b'/').unwrap_or(path.len());
            (0..=end).any(|i| walk(rest, &path[i..]))
        }
        [b'?', rest @ ..] => path.first().is_some_and(|b| *b != b'/') && walk(rest, &path[1..]),
        [c, rest @ ..] => path.first() == Some(c) && walk(rest, &path[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_expand_also_nested_and_empty() {
        assert_eq!(expand("a"), ["a"]);
        assert_eq!(expand("x{a,b}y"), ["xay", "xby"]);
        assert_eq!(expand("s{,-t}.u"), ["s.u", "s-t.u"]);
        assert_eq!(expand("{a,b{c,d}}"), ["a", "bc", "bd"]);
        assert_eq!(expand("{a,b}{c,d}").len(), 4);
    }

    #[test]
    fn stars_stop_at_slashes_double_stars_do_not() {
        for (pattern, path, expected) in [
            ("usr/bin/*", "usr/bin/cat", true),
            ("usr/bin/*", "usr/bin/a/b", false),
            ("usr/**", "usr/bin/a/b", true),
            ("usr/*/x.ko*", "usr/m/x.ko.xz", true),
            ("usr/*/x.ko*", "usr/m/xx.ko.xz", false),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }
}
