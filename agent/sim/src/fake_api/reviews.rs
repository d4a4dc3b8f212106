//! TokenReview and SubjectAccessReview: the users of tokens, and their permissions for the nodes' API.
//!
//! In: reviews as values. Out: the same with their answers. Invariant: a user without an entry has no permission.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::api::{ApiCall, ApiReply};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewStatus, UserInfo};
use k8s_openapi::api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewStatus};

/// Tokens and permissions that the server knows.
#[derive(Clone, Debug, Default)]
pub struct Reviews {
    /// Users by token: name and groups.
    pub tokens: BTreeMap<String, (String, Vec<String>)>,
    /// User or group, verb, subresource of nodes.
    pub grants: BTreeSet<(String, String, String)>,
    /// Reviews answered so far.
    pub asked: u64,
}

impl Reviews {
    /// Answers a call, if it is a review.
    pub(super) fn of_call(&mut self, call: &ApiCall) -> Option<ApiReply> {
        match call {
            ApiCall::ReviewToken(review) => {
                Some(ApiReply::TokenReview(Box::new(self.token(TokenReview::clone(review)))))
            }
            ApiCall::ReviewAccess(review) => {
                Some(ApiReply::AccessReview(Box::new(self.access(SubjectAccessReview::clone(review)))))
            }
            _ => None,
        }
    }

    /// Answers a TokenReview.
    pub fn token(&mut self, mut review: TokenReview) -> TokenReview {
        self.asked += 1;
        let user = self.tokens.get(&review.spec.token).map(|(name, groups)| UserInfo {
            username: Some(name.clone()),
            groups: Some(groups.clone()),
            ..UserInfo::default()
        });
        let authenticated = Some(user.is_some());
        review.status = Some(TokenReviewStatus { authenticated, user, ..TokenReviewStatus::default() });
        review
    }

    /// Answers a SubjectAccessReview.
    pub fn access(&mut self, mut review: SubjectAccessReview) -> SubjectAccessReview {
        self.asked += 1;
        let spec = &review.spec;
        let attributes = spec.resource_attributes.clone().unwrap_or_default();
        let is_of_node = attributes.resource.as_deref() == Some("nodes");
        let (verb, sub) = (attributes.verb.unwrap_or_default(), attributes.subresource.unwrap_or_default());
        let mut whose = spec.user.iter().chain(spec.groups.iter().flatten());
        let allowed =
            is_of_node && whose.any(|who| self.grants.contains(&(who.clone(), verb.clone(), sub.clone())));
        review.status = Some(SubjectAccessReviewStatus { allowed, ..SubjectAccessReviewStatus::default() });
        review
    }
}
