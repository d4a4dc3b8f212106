//! Rules of the management API's administrators: each has a name and a key of its own.

use std::collections::BTreeSet;

use super::Rules;
use crate::admin_key;
use crate::node::types::Api;
use crate::path;

/// Most administrators.
const ADMINS_MAX: usize = 64;
/// Longest name, bytes.
const NAME_MAX: usize = 63;

impl Rules<'_> {
    pub(super) fn api(&mut self, api: &Api) {
        if api.admins.len() > ADMINS_MAX {
            self.broken("api.admins", None, &format!("must have at most {ADMINS_MAX} entries"));
        }
        let (mut names, mut keys) = (BTreeSet::new(), BTreeSet::new());
        for (i, admin) in api.admins.iter().enumerate() {
            let at = |key: &str| format!("{}.{key}", path::index("api.admins", i));
            let named = "must be 1 to 63 letters, digits and `-_.@`, another one for each administrator";
            self.rule(is_name(&admin.name) && names.insert(&admin.name), &at("name"), &admin.name, named);
            let keyed = "must be a key of its own, `ed25519:` and base64, as `orlopctl key new` prints it";
            let ok = admin_key::parse(&admin.key).is_some() && keys.insert(&admin.key);
            self.rule(ok, &at("key"), &admin.key, keyed);
        }
    }
}

fn is_name(name: &str) -> bool {
    let safe = |b: u8| b.is_ascii_alphanumeric() || b"-_.@".contains(&b);
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_administrators() {
        for good in ["ops-1", "a@b.example", "A_1"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", " ", "a b", "ä", "a/b", "a\n", &"x".repeat(64)] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
