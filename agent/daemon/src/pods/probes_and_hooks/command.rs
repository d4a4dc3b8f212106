//! Commands in a container. The runtime ends a command at its timeout and reports this.

use std::time::Duration;

use agent_core::probe::Outcome;
use agent_kubelet_api::drivers::Exec;
use agent_types::failure::Class;
use agent_types::ids::ContainerId;

use super::ANSWER_BYTES_MAX;

/// Exit code 0 is success. A failure's message is the output of the command.
pub(super) async fn probe(
    exec: &impl Exec,
    container: &ContainerId,
    command: &[String],
    timeout: Duration,
) -> Outcome {
    match exec.exec_sync(container, command, Some(timeout)).await {
        Ok(output) if output.exit_code == 0 => Outcome::Success,
        Ok(output) => {
            Outcome::Failure(String::from_utf8_lossy(&both(&output.stdout, &output.stderr)).into_owned())
        }
        Err(error) if error.class == Class::DeadlineExceeded => Outcome::Failure(format!(
            "command timed out: {:?} timed out after {}s",
            command.join(" "),
            timeout.as_secs()
        )),
        Err(error) => Outcome::Error(error.to_string()),
    }
}

/// Both outputs, as far as they are looked at.
pub(super) fn both(stdout: &[u8], stderr: &[u8]) -> Vec<u8> {
    stdout.iter().chain(stderr).take(ANSWER_BYTES_MAX).copied().collect()
}
