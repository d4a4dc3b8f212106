//! Finds the Debian mirror of this machine and writes apt configuration for the image from it (pure).
//!
//! No mirror is ever named in the project: a Debian machine says itself where its packages come from; elsewhere
//! `ORLOP_DEBIAN_MIRROR` does.

/// Environment variable that names the mirror, as `http://host/debian` or with the security archive after a space.
pub const MIRROR_VARIABLE: &str = "ORLOP_DEBIAN_MIRROR";

/// Where Debian's packages come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The archive.
    pub main: String,
    /// The security archive, if there is one of its own.
    pub security: Option<String>,
}

/// Suites of Debian that a source entry of this machine may name.
const SUITES: [&str; 9] =
    ["bullseye", "bookworm", "trixie", "forky", "sid", "stable", "testing", "unstable", "oldstable"];

/// Finds the mirror: the variable, else the first Debian archive in the texts of apt's source files.
#[must_use]
pub fn find_mirror(variable: Option<&str>, sources: &[String]) -> Option<Mirror> {
    if let Some(value) = variable.filter(|v| !v.trim().is_empty()) {
        let mut words = value.split_whitespace().map(|w| w.trim_end_matches('/').to_owned());
        return Some(Mirror { main: words.next()?, security: words.next() });
    }
    let entries: Vec<(String, String)> =
        sources.iter().flat_map(|text| deb822(text).into_iter().chain(one_line(text))).collect();
    let debian = |(uri, suite): &&(String, String)| {
        let base = suite.split(['-', '/']).next().unwrap_or_default();
        SUITES.contains(&base) && uri.contains("debian")
    };
    let is_security = |suite: &str| suite.ends_with("-security") || suite.ends_with("/updates");
    let main =
        entries.iter().filter(debian).find(|(_, suite)| !is_security(suite) && !suite.contains('-'))?;
    let security = entries.iter().filter(debian).find(|(_, suite)| is_security(suite));
    Some(Mirror { main: main.0.clone(), security: security.map(|(uri, _)| uri.clone()) })
}

// (URI, suite) pairs of deb822 stanzas.
fn deb822(text: &str) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            let lines = stanza.lines().filter(|l| !l.starts_with('#'));
            lines
                .filter_map(|l| l.split_once(':'))
                .find(|(k, _)| k.eq_ignore_ascii_case(name))
                .map(|(_, v)| v.trim())
        };
        if field("Enabled").is_some_and(|v| v.eq_ignore_ascii_case("no")) {
            continue;
        }
        let (Some(uris), Some(suites)) = (field("URIs"), field("Suites")) else { continue };
        for uri in uris.split_whitespace() {
            out.extend(suites.split_whitespace().map(|s| (clean(uri), s.to_owned())));
        }
    }
    out
}

// (URI, suite) pairs of `deb [options] URI SUITE component...` lines.
fn one_line(text: &str) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("deb ") else { continue };
        let rest = rest.trim_start();
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']').map_or("", |(_, r)| r),
            None => rest,
        };
        let mut words = rest.split_whitespace();
        if let (Some(uri), Some(suite)) = (words.next(), words.next()) {
            out.push((clean(uri), suite.to_owned()));
        }
    }
    out
}

fn clean(uri: &str) -> String {
    uri.trim_end_matches('/').to_owned()
}

/// The keyring of Debian's archive, on the host and in the tools tree.
pub const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Firmware of network cards and microcode are in a component of their own (docs/decisions/firmware.md).
const COMPONENTS: &str = "main non-free-firmware";

/// A deb822 sources file for `suites` of the mirror, with the security archive of the base suite.
#[must_use]
pub fn sources(mirror: &Mirror, base: &str, newer: &[&str]) -> String {
    let mut suites = vec![base.to_owned(), format!("{base}-updates")];
    suites.extend(newer.iter().map(|s| (*s).to_owned()));
    let stanza = |uri: &str, suites: &str| {
        format!(
            "Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: {COMPONENTS}\nSigned-By: {KEYRING}\n\n"
        )
    };
    let mut out = stanza(&mirror.main, &suites.join(" "));
    if let Some(security) = &mirror.security {
        out.push_str(&stanza(security, &format!("{base}-security")));
    }
    out
}

/// What to say when no mirror is known.
#[must_use]
pub fn no_mirror_message() -> String {
    format!(
        "no Debian archive in this machine's apt sources; name one with {MIRROR_VARIABLE}, for example: \
         export {MIRROR_VARIABLE}=\"http://MIRROR/debian http://MIRROR/debian-security\""
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_are_found_in_both_formats() {
        let modern = "# c\nTypes: deb\nURIs: http://m.example/debian/\nSuites: trixie trixie-updates\n\n\
            Types: deb\nURIs: http://s.example/debian-security\nSuites: trixie-security\n";
        let classic = "deb [signed-by=/k arch=amd64] http://m.example/debian bookworm main\n\
            deb http://s.example/debian-security bookworm-security main\n# deb http://no/debian sid main\n";
        for text in [modern, classic] {
            let found = find_mirror(None, &[text.to_owned()]).expect(text);
            assert_eq!(found.main, "http://m.example/debian");
            assert_eq!(found.security.as_deref(), Some("http://s.example/debian-security"));
        }
    }

    #[test]
    fn other_archives_are_no_mirror_and_the_variable_wins() {
        let ubuntu =
            "Types: deb\nURIs: http://archive.example/ubuntu\nSuites: noble noble-updates\n".to_owned();
        let vendor = "deb http://vendor.example/apt stable main".to_owned();
        assert_eq!(find_mirror(None, &[ubuntu.clone(), vendor]), None);
        let found = find_mirror(Some("http://m/debian/ http://m/sec"), &[ubuntu]).expect("variable");
        assert_eq!(
            (found.main.as_str(), found.security.as_deref()),
            ("http://m/debian", Some("http://m/sec"))
        );
    }

    #[test]
    fn disabled_stanzas_do_not_count() {
        let text = "Enabled: no\nTypes: deb\nURIs: http://m/debian\nSuites: trixie\n".to_owned();
        assert_eq!(find_mirror(None, &[text]), None);
    }

    #[test]
    fn sources_name_suites_and_keyring() {
        let mirror = Mirror { main: "http://m/debian".to_owned(), security: None };
        let text = sources(&mirror, "trixie", &["forky", "sid"]);
        assert!(text.contains("Suites: trixie trixie-updates forky sid\n"));
        assert!(text.contains("Components: main non-free-firmware\n"));
        assert!(!text.contains("security") && text.contains(KEYRING));
    }
}
