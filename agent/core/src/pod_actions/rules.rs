//! A container's own restart rules (`restartPolicyRules`): the rule that matches an exit code, and its
//! action.
//!
//! In: container, exit code. Out: the first matching rule. Upstream: `FindMatchingContainerRestartRule` and
//! `AllContainersCouldRestart` of pkg/api/v1/pod/util.go (KEP-5307, KEP-5532).

use agent_types::pod;
use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, Pod};

const RESTART_ALL: &str = "RestartAllContainers";

/// The first rule of `container` that an end with `exit_code` meets.
fn matching(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    container.restart_policy_rules.iter().flatten().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.as_ref().is_some_and(|v| v.contains(&exit_code));
            match codes.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })
    })
}

/// A rule brings the container back that ended with `exit_code`, alone or with all others.
pub(super) fn restarts(container: &Container, exit_code: i32) -> bool {
    matching(container, exit_code).is_some_and(|rule| matches!(rule.action.as_str(), "Restart" | RESTART_ALL))
}

/// True if a rule restarts all containers of the pod when this one ends with `exit_code`.
#[must_use]
pub fn restarts_all(container: &Container, exit_code: i32) -> bool {
    matching(container, exit_code).is_some_and(|rule| rule.action == RESTART_ALL)
}

/// True if a container of the pod has a rule that can restart all of them: then no end of a container is for
/// good.
#[must_use]
pub fn may_restart_all(p: &Pod) -> bool {
    let mut all = pod::init_containers(p).iter().chain(pod::containers(p));
    all.any(|c| c.restart_policy_rules.iter().flatten().any(|rule| rule.action == RESTART_ALL))
}
