//! Selection of cases by the command line, and the list of cases. Pure.

use std::time::Duration;

use crate::case::{Case, human};

/// Shell-like match: `*` is any run of characters (also `/`), `?` any one.
#[must_use]
pub fn glob_matches(pattern: &str, name: &str) -> bool {
    let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut pi, mut ni) = (0, 0);
    // Position after the last star, to resume there if the rest does not match.
    let mut star: Option<(usize, usize)> = None;
    while ni < n.len() {
        if pi < p.len() && p[pi] == '*' {
            star = Some((pi, ni));
            pi += 1;
        } else if pi < p.len() && (p[pi] == '?' || p[pi] == n[ni]) {
            pi += 1;
            ni += 1;
        } else if let Some((sp, sn)) = star {
            pi = sp + 1;
            ni = sn + 1;
            star = Some((sp, sn + 1));
        } else {
            return false;
        }
    }
    p[pi..].iter().all(|c| *c == '*')
}

/// The cases that any of the patterns names, in the order of the registry, each once.
///
/// # Errors
/// The first pattern that names no case.
pub fn select(cases: &[Case], patterns: &[String]) -> Result<Vec<Case>, String> {
    for pattern in patterns {
        if !cases.iter().any(|c| glob_matches(pattern, c.name)) {
            return Err(pattern.clone());
        }
    }
    Ok(cases.iter().filter(|c| patterns.iter().any(|p| glob_matches(p, c.name))).copied().collect())
}

/// One line per case: name, level, expected duration, promise.
#[must_use]
pub fn render_list(cases: &[Case]) -> String {
    let width = cases.iter().map(|c| c.name.len()).max().unwrap_or(0);
    cases.iter().fold(String::new(), |mut text, c| {
        let expected = human(Duration::from_secs(c.expected_s));
        text.push_str(&format!("{:width$}  {:<3}  {:>12}  {}\n", c.name, c.level, expected, c.about));
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Level;

    fn case(name: &'static str) -> Case {
        Case { name, level: Level::L4n, expected_s: 75, about: "x", group: None, run: |_| Ok(()) }
    }

    #[test]
    fn globs() {
        for (pattern, name, want) in [
            ("boot/*", "boot/uefi", true),
            ("boot/*", "lifecycle/boot/", false),
            ("*", "a/b", true),
            ("*pod*", "lifecycle/static-pod-add", true),
            ("boot/uef?", "boot/uefi", true),
            ("boot/uefi", "boot/uefi2", false),
            ("boot/uefi?", "boot/uefi", false),
            ("*a*b", "xxaxxbxxb", true),
            ("", "", true),
        ] {
            assert_eq!(glob_matches(pattern, name), want, "{pattern} {name}");
        }
    }

    #[test]
    fn selection_keeps_order_and_names_a_pattern_without_cases() {
        let all = [case("a/1"), case("a/2"), case("b/1")];
        let names: Vec<_> = select(&all, &["b/*".into(), "a/1".into(), "*1".into()])
            .unwrap()
            .iter()
            .map(|c| c.name)
            .collect();
        assert_eq!(names, ["a/1", "b/1"]);
        assert_eq!(select(&all, &["a/*".into(), "c/*".into()]).err().as_deref(), Some("c/*"));
    }

    #[test]
    fn list_shows_level_and_expected_duration() {
        assert_eq!(render_list(&[case("a/1")]), "a/1  L4n    1 min 15 s  x\n");
    }
}
