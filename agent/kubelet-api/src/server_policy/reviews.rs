//! The API server's part in words it understands: TokenReview and SubjectAccessReview.

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};

use super::TokenAnswer;
use super::user::User;

/// The TokenReview for a token.
#[must_use]
pub fn token_review(token: &str) -> TokenReview {
    let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
    TokenReview { spec, ..TokenReview::default() }
}

/// Reads the answer of a TokenReview.
#[must_use]
pub fn user_of_review(review: &TokenReview) -> TokenAnswer {
    let Some(status) = review.status.as_ref().filter(|s| s.authenticated == Some(true)) else {
        return TokenAnswer::Unknown;
    };
    let Some(user) = &status.user else { return TokenAnswer::Unknown };
    TokenAnswer::User(User {
        name: user.username.clone().unwrap_or_default(),
        uid: user.uid.clone().unwrap_or_default(),
        groups: user.groups.clone().unwrap_or_default(),
        extra: user.extra.clone().unwrap_or_default(),
    })
}

/// Asks whether `user` may `verb` the subresource of the node.
#[must_use]
pub fn access_review(user: &User, verb: &str, node: &str, subresource: &str) -> SubjectAccessReview {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let attributes = ResourceAttributes {
        verb: some(verb),
        version: Some("v1".to_owned()),
        resource: Some("nodes".to_owned()),
        subresource: some(subresource),
        name: some(node),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: some(&user.name),
        uid: some(&user.uid),
        groups: (!user.groups.is_empty()).then(|| user.groups.clone()),
        extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
        resource_attributes: Some(attributes),
        non_resource_attributes: None,
    };
    SubjectAccessReview { spec, ..SubjectAccessReview::default() }
}

/// Reads the answer of a SubjectAccessReview; a denial wins over an allowance.
#[must_use]
pub fn is_allowed(review: &SubjectAccessReview) -> bool {
    review.status.as_ref().is_some_and(|s| s.allowed && s.denied != Some(true))
}

/// Key of a review: equal reviews have equal keys. Users may have any number of groups and extras, so caches
/// keep digests of keys.
#[must_use]
pub fn review_key(review: &SubjectAccessReview) -> String {
    // A map with text keys: this cannot fail, and an empty key would only be a key of its own.
    serde_json::to_string(&review.spec).unwrap_or_default()
}
