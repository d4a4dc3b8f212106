//! Who a request comes from.

use std::collections::BTreeMap;

/// A name without credentials.
const ANONYMOUS: &str = "system:anonymous";
/// Everybody who proved who they are.
const AUTHENTICATED: &str = "system:authenticated";
/// Everybody else.
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// A user as TokenReview and SubjectAccessReview know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Name; of a certificate its common name.
    pub name: String,
    /// UID, where the authenticator knows one.
    pub uid: String,
    /// Groups; of a certificate its organizations.
    pub groups: Vec<String>,
    /// What else the authenticator said.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Nobody in particular.
    #[must_use]
    pub fn anonymous() -> User {
        User { name: ANONYMOUS.to_owned(), groups: vec![UNAUTHENTICATED.to_owned()], ..User::default() }
    }

    /// Of a verified client certificate.
    #[must_use]
    pub fn of_certificate(common_name: &str, organizations: &[String]) -> User {
        User { name: common_name.to_owned(), groups: organizations.to_vec(), ..User::default() }
    }

    /// The same, as a member of the group of all who proved who they are (but for the anonymous).
    #[must_use]
    pub(super) fn authenticated(mut self) -> User {
        let special = [AUTHENTICATED, UNAUTHENTICATED];
        if !self.groups.iter().any(|g| special.contains(&g.as_str())) && self.name != ANONYMOUS {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}
