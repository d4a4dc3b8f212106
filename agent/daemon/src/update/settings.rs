//! Settings of updates, from the node's configuration as init leaves it for the updater.
//!
//! In: `/run/orlop/update.json`. Out: [`UpdateSettings`]. init has checked the values; one that is not understood all the same makes a
//! node wait for a person, never reboot at another time than it may.

use std::path::Path;

use agent_core::node_update::watch::TrialLimits;
use agent_core::node_update::windows::UpdateWindow;
use agent_core::node_update::{Coordination, DrainConfig, UpdateConfig};
use agent_linux::files;
use agent_types::failure::Class;
use orlop_config::node::{DrainTimeout, RebootCoordination, RebootWindow, Update, UpdatePolicy};

use crate::pods::pod_dirs::chain;

/// Longest file of settings that is read, bytes.
const BYTES_MAX: u64 = 64 << 10;

/// What the driver needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateSettings {
    /// Of the machine.
    pub config: UpdateConfig,
    /// The node's group in the ConfigMap of reboots.
    pub group: String,
    /// The version that a node which updates by itself is to run.
    pub pin: Option<String>,
    /// There is a server that a named version can be asked for.
    pub has_source: bool,
}

impl UpdateSettings {
    /// Of a node. A standalone one has nobody to ask and to tell: its pods end with the reboot's shutdown.
    #[must_use]
    pub fn new(update: &Update, in_cluster: bool) -> UpdateSettings {
        let window = |window: &RebootWindow| {
            let days: Vec<&str> = window.days.iter().map(|day| day.as_str()).collect();
            UpdateWindow::new(&days, &window.start, window.minutes).ok()
        };
        let windows: Vec<UpdateWindow> = update.windows.iter().filter_map(window).collect();
        let is_understood = windows.len() == update.windows.len();
        let is_automatic = update.policy == UpdatePolicy::Automatic && is_understood;
        let coordination = match update.coordination {
            _ if !in_cluster => Coordination::None,
            RebootCoordination::None => Coordination::None,
            RebootCoordination::Shared => Coordination::Shared,
            RebootCoordination::Permit => Coordination::Permit,
        };
        let drain = DrainConfig {
            is_enabled: update.drain.enabled && in_cluster,
            timeout: update.drain.timeout.to_std(),
            goes_on: update.drain.on_timeout == DrainTimeout::Continue,
        };
        let limits = TrialLimits {
            deadline: update.trial.deadline.to_std(),
            soak: update.trial.soak.to_std(),
            hold_max: update.trial.hold_max.to_std(),
        };
        let config =
            UpdateConfig { is_automatic, windows, coordination, drain, limits, ..UpdateConfig::default() };
        let pin = Some(update.version.clone()).filter(|version| is_automatic && !version.is_empty());
        UpdateSettings { config, group: update.group.clone(), pin, has_source: !update.source.is_empty() }
    }
}

/// Reads the settings; without a file they are the defaults, and with one that is not understood, too.
#[must_use]
pub fn read(path: &Path) -> Update {
    match files::read_capped(path, BYTES_MAX) {
        Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::error!(path = %path.display(), %error, "settings of updates are not understood: nothing is done by itself");
            Update::default()
        }),
        Err(error) if error.class() == Class::NotFound => Update::default(),
        Err(error) => {
            tracing::error!(error = chain(&error), "settings of updates are not read: nothing is done by itself");
            Update::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn update(text: &str) -> Update {
        serde_json::from_str(text).expect("settings")
    }

    #[test]
    fn settings_reach_the_machine() {
        let text = r#"{"source": "https://a.example/o", "policy": "automatic", "version": "0.2.0",
            "windows": [{"days": ["tue"], "start": "02:00", "minutes": 180}], "coordination": "shared", "group": "edge",
            "drain": {"timeout": "5m", "onTimeout": "continue"}, "trial": {"deadline": "3m", "soak": "10s"}}"#;
        let settings = UpdateSettings::new(&update(text), true);
        let config = &settings.config;
        assert!(
            config.is_automatic && config.drain.is_enabled && config.drain.goes_on && settings.has_source
        );
        assert_eq!((config.windows.len(), config.coordination), (1, Coordination::Shared));
        assert_eq!(config.drain.timeout, Duration::from_secs(300));
        assert_eq!(config.limits.deadline, Duration::from_secs(180));
        assert_eq!(config.limits.hold_max, Duration::from_secs(6 * 3600));
        assert_eq!((settings.group.as_str(), settings.pin.as_deref()), ("edge", Some("0.2.0")));
        let alone = UpdateSettings::new(&update(text), false);
        assert_eq!((alone.config.coordination, alone.config.drain.is_enabled), (Coordination::None, false));
    }

    #[test]
    fn what_is_not_understood_reboots_nothing() {
        let text =
            r#"{"policy": "automatic", "version": "0.2.0", "windows": [{"start": "2", "minutes": 5}]}"#;
        let settings = UpdateSettings::new(&update(text), true);
        assert_eq!((settings.config.is_automatic, settings.pin), (false, None));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("update.json");
        assert_eq!(read(&file), Update::default());
        std::fs::write(&file, "{").unwrap();
        assert_eq!(read(&file), Update::default());
        std::fs::write(&file, r#"{"policy": "stage"}"#).unwrap();
        assert_eq!(read(&file).policy, UpdatePolicy::Stage);
        assert!(!UpdateSettings::new(&read(&file), true).config.is_automatic);
    }
}
