//! What the container manager is made from: the configuration, the machine, the driver.
//!
//! In: KubeletConfiguration, /proc, /sys, what the runtime says of the driver. Out: a [`ContainerManagerPlan`]. On a node whose
//! configuration names systemd the first cgroups are made before the runtime answers: it is the slowest thing at boot.

use std::path::Path;
use std::sync::Arc;

use agent_core::container_manager::Config;
use agent_linux::cgroups::LinuxCgroups;
use agent_linux::machine;
use agent_types::node_context::{CgroupDriver, MemoryQos};
use agent_types::resources::cgroups::pod;
use agent_types::resources::cgroups::tiers::{self, Classes, MemoryReserve};
use orlop_config::kubelet::{FeatureGates, KubeletConfiguration, enums};

use crate::node::container_manager::ContainerManagerPlan;
use crate::node::node_settings::machine_amounts;
use crate::settings::Settings;
use crate::tasks::actor::Tasks;

/// Whether memory that pods ask for is kept for them.
#[must_use]
pub fn memory_qos(kubelet: &KubeletConfiguration, gates: &FeatureGates) -> MemoryQos {
    match kubelet.memory_reservation_policy {
        _ if !gates.memory_qos => MemoryQos::Off,
        enums::MemoryReservationPolicy::None => MemoryQos::None,
        enums::MemoryReservationPolicy::TieredReservation => MemoryQos::Tiered,
    }
}

/// The pods' cgroups and those above them; `None` where pods have none of their own (`cgroupsPerQOS: false`).
///
/// # Errors
/// Memory or CPUs of the machine cannot be read.
pub fn plan(settings: &Settings, driver: CgroupDriver) -> anyhow::Result<Option<ContainerManagerPlan>> {
    let kubelet = &settings.kubelet;
    if !kubelet.cgroups_per_qos {
        return Ok(None);
    }
    let machine = tiers::Machine {
        amounts: machine_amounts(kubelet, Path::new(&settings.options.root_dir))?,
        pids_max: machine::pids_max(),
        hugepage_sizes: machine::hugepage_sizes(),
        cpus: machine::cpu_list(),
    };
    let memory = memory_qos(kubelet, &settings.gates);
    let config = Config {
        kubepods: pod::kubepods(&kubelet.cgroup_root, driver),
        root: tiers::root(kubelet, &machine),
        reserved: tiers::reserved(kubelet, &machine, driver, memory),
        classes: Classes {
            memory,
            reserve: MemoryReserve::of(kubelet, &machine),
            hugepage_sizes: machine.hugepage_sizes,
        },
    };
    Ok(Some(ContainerManagerPlan { driver: Arc::new(LinuxCgroups::new(driver)), config }))
}

/// Begins to make the cgroups above the pods' if the configuration says that systemd does it. A configuration that
/// leaves the driver to the runtime waits for the runtime's answer.
///
/// # Errors
/// As [`plan`].
pub fn begin_early(settings: &Settings, tasks: &Tasks) -> anyhow::Result<Option<ContainerManagerPlan>> {
    if settings.kubelet.cgroup_driver != enums::CgroupDriver::Systemd {
        return Ok(None);
    }
    let early = plan(settings, CgroupDriver::Systemd)?;
    if let Some(early) = early.clone() {
        tasks.start(early.prepare());
    }
    Ok(early)
}

/// The plan, now that the driver is known. What was begun for another driver is taken back.
///
/// # Errors
/// As [`plan`].
pub fn settle(
    early: Option<ContainerManagerPlan>,
    settings: &Settings,
    driver: CgroupDriver,
    tasks: &Tasks,
) -> anyhow::Result<Option<ContainerManagerPlan>> {
    match early {
        Some(early) if driver == CgroupDriver::Systemd => Ok(Some(early)),
        Some(early) => {
            tracing::warn!("cgroupDriver is systemd, the runtime says cgroupfs: the runtime's is taken");
            tasks.start(async move {
                if let Err(error) = early.driver.remove(&early.config.kubepods).await {
                    tracing::warn!(%error, "the slice of pods stays");
                }
            });
            plan(settings, driver)
        }
        None => plan(settings, driver),
    }
}
