//! Reviews for the node management API: a token that is meant for it, and the areas of a node as virtual resources.
//!
//! In: a token, a user, an area. Out: TokenReview and SubjectAccessReview, and what their answers mean. Invariants: a token counts only
//! if the API server says that it is for the node ([`audiences`]), so a token that a client shows to a node is of no use at the API
//! server, and one for this node alone of none at other nodes; areas are resources of a group that has no objects, so no role for Nodes
//! gives them. Specification: docs/reference/node-api.md.

use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;

use super::authentication::{TokenAnswer, Verdict, conclude};
use super::reviews::{access_review, token_review, user_of_review};
use super::user::User;

/// Audience of tokens for the management API of every node.
pub const AUDIENCE: &str = "orlop.dev/node-api";
/// Group of the virtual resources `nodes/<area>`.
pub const AREA_GROUP: &str = "node.orlop.dev";
const AREA_VERSION: &str = "v1alpha1";

/// Audiences of tokens that count at the node: its own, and that of every node.
#[must_use]
pub fn audiences(node: &str) -> [String; 2] {
    [format!("{AUDIENCE}/{node}"), AUDIENCE.to_owned()]
}

/// The TokenReview for a token of the management API.
#[must_use]
pub fn audience_review(token: &str, node: &str) -> TokenReview {
    let mut review = token_review(token);
    review.spec.audiences = Some(audiences(node).to_vec());
    review
}

/// The user of such a token; `None` if the API server does not know the token, or it is for another audience. An authenticator that knows
/// no audiences names none in its answer, and its tokens do not count (TokenReview, `status.audiences`).
#[must_use]
pub fn audience_user(review: &TokenReview, node: &str) -> Option<User> {
    let answered = review.status.as_ref().and_then(|status| status.audiences.as_deref()).unwrap_or_default();
    if !audiences(node).iter().any(|audience| answered.contains(audience)) {
        return None;
    }
    match user_of_review(review) {
        TokenAnswer::User(user) if user.name.is_empty() => None,
        answer => match conclude(answer) {
            Verdict::User(user) => Some(user),
            Verdict::Unauthorized => None,
        },
    }
}

/// Asks whether `user` may `verb` an area of the node.
#[must_use]
pub fn area_review(user: &User, verb: &str, node: &str, area: &str) -> SubjectAccessReview {
    let mut review = access_review(user, verb, node, area);
    if let Some(attributes) = &mut review.spec.resource_attributes {
        attributes.group = Some(AREA_GROUP.to_owned());
        attributes.version = Some(AREA_VERSION.to_owned());
    }
    review
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo};

    use super::*;

    fn answered(audiences: Option<&[&str]>, name: &str, authenticated: bool) -> TokenReview {
        let user = UserInfo { username: Some(name.to_owned()), ..UserInfo::default() };
        let status = TokenReviewStatus {
            authenticated: Some(authenticated),
            audiences: audiences.map(|all| all.iter().map(|one| (*one).to_owned()).collect()),
            user: Some(user),
            ..TokenReviewStatus::default()
        };
        TokenReview { status: Some(status), ..audience_review("t", "n1") }
    }

    #[test]
    fn only_a_token_for_the_management_api_has_a_user() {
        let asked = audience_review("t", "n1").spec.audiences.unwrap();
        assert_eq!(asked, ["orlop.dev/node-api/n1", "orlop.dev/node-api"]);
        let of_node = answered(Some(&["orlop.dev/node-api/n1"]), "ops", true);
        assert_eq!(audience_user(&of_node, "n1").map(|user| user.name).as_deref(), Some("ops"));
        assert_eq!(audience_user(&of_node, "n2"), None, "it is of no use at another node");
        let user = audience_user(&answered(Some(&["x", AUDIENCE]), "ops", true), "n1").unwrap();
        assert_eq!(
            (user.name.as_str(), user.groups.as_slice()),
            ("ops", &["system:authenticated".to_owned()][..])
        );
        for refused in [
            answered(None, "ops", true),
            answered(Some(&[]), "ops", true),
            answered(Some(&["https://kubernetes.default.svc"]), "ops", true),
            answered(Some(&[AUDIENCE]), "ops", false),
            answered(Some(&[AUDIENCE]), "", true),
            audience_review("t", "n1"),
        ] {
            assert_eq!(audience_user(&refused, "n1"), None, "{refused:?}");
        }
    }

    #[test]
    fn an_area_is_a_resource_of_a_group_of_its_own() {
        let user = User { name: "ops".to_owned(), ..User::default() };
        let spec = area_review(&user, "get", "n1", "logs").spec;
        let attributes = spec.resource_attributes.unwrap();
        let words =
            [attributes.group, attributes.resource, attributes.subresource, attributes.name, attributes.verb];
        let expected = ["node.orlop.dev", "nodes", "logs", "n1", "get"].map(|word| Some(word.to_owned()));
        assert_eq!((words, spec.user.as_deref()), (expected, Some("ops")));
    }
}
