//! The Debian packages of an image as a list that other programs read: CycloneDX 1.6, without a time, so that the same image gives
//! the same text.

use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The list.
pub(super) fn text(version: &str, packages: &BTreeMap<String, String>) -> String {
    let components: Vec<Value> = packages
        .iter()
        .map(|(name, version)| {
            json!({
                "type": "library",
                "name": name,
                "version": version,
                "purl": format!("pkg:deb/debian/{}@{}", encoded(name), encoded(version)),
            })
        })
        .collect();
    let list = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": { "type": "operating-system", "name": "orlop", "version": version } },
        "components": components,
    });
    format!("{list:#}\n")
}

/// As package URLs have it: all but letters, digits and `.-_~:` in percent.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b".-_~:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_has_its_url() {
        let packages = [("libstdc++6", "1:14.2.0-19+deb13u1"), ("zlib1g", "1.3")];
        let packages: BTreeMap<String, String> =
            packages.map(|(name, version)| (name.to_owned(), version.to_owned())).into();
        let list: Value = serde_json::from_str(&text("0.2.0", &packages)).expect("JSON");
        let urls: Vec<&str> =
            list["components"].as_array().into_iter().flatten().filter_map(|c| c["purl"].as_str()).collect();
        assert_eq!(
            urls,
            ["pkg:deb/debian/libstdc%2B%2B6@1:14.2.0-19%2Bdeb13u1", "pkg:deb/debian/zlib1g@1.3"]
        );
        assert_eq!(list["metadata"]["component"]["version"], "0.2.0");
    }
}
