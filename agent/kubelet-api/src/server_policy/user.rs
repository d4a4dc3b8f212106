//! The user of a request.

use std::collections::BTreeMap;

/// A name without credentials.
const ANONYMOUS: &str = "system:anonymous";
/// Group of all authenticated users.
const AUTHENTICATED: &str = "system:authenticated";
/// Group of all anonymous requests.
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// What an authenticator calls the credential that it saw (apiserver's `user.CredentialIDKey`).
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Subject of a verified client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Its common name; of several the last.
    pub common_name: String,
    /// Organizations (O), the user's groups.
    pub organizations: Vec<String>,
    /// Attributes 1.3.6.1.4.1.57683.2, the user's UID (KEP-4657); `None` for one that is not text.
    pub uids: Vec<Option<String>>,
    /// SHA-256 of the certificate.
    pub fingerprint: Vec<u8>,
}

impl Subject {
    /// The user of the certificate; UIDs count with the gate `AllowParsingUserUIDFromCertAuth`. `None` for a
    /// subject without a name, or with an invalid UID, or with several.
    #[must_use]
    pub fn user(&self, with_uid: bool) -> Option<User> {
        let uid = match &self.uids[..] {
            _ if !with_uid => "",
            [] => "",
            [Some(uid)] if !uid.is_empty() => uid,
            _ => return None,
        };
        let id = format!("X509SHA256={}", hex::encode(&self.fingerprint));
        (!self.common_name.is_empty()).then(|| User {
            uid: uid.to_owned(),
            extra: BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![id])]),
            ..User::of_certificate(&self.common_name, &self.organizations)
        })
    }
}

/// A user as TokenReview and SubjectAccessReview know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Name; of a certificate its common name.
    pub name: String,
    /// UID, if the authenticator knows it.
    pub uid: String,
    /// Groups; of a certificate its organizations.
    pub groups: Vec<String>,
    /// Further attributes from the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The anonymous user.
    #[must_use]
    pub fn anonymous() -> User {
        User { name: ANONYMOUS.to_owned(), groups: vec![UNAUTHENTICATED.to_owned()], ..User::default() }
    }

    /// By the names of a verified client certificate.
    #[must_use]
    pub fn of_certificate(common_name: &str, organizations: &[String]) -> User {
        User { name: common_name.to_owned(), groups: organizations.to_vec(), ..User::default() }
    }

    /// The same user with the group of authenticated users (unless anonymous).
    #[must_use]
    pub(super) fn authenticated(mut self) -> User {
        let special = [AUTHENTICATED, UNAUTHENTICATED];
        if !self.groups.iter().any(|g| special.contains(&g.as_str())) && self.name != ANONYMOUS {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}
