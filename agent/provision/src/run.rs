//! The unit: asks until the service answers, keeps what counts, and lets the agent start when that is done or has taken too long.
//!
//! The agent waits at the first boot only, [`Limits::wait_max`] at most; then it starts standalone, and the asking goes on. User data
//! that are refused are said once, and asked for again: a person may correct them where the platform allows that.

use super::azure::{self, GoalState};
use super::exchange::{ExchangeFailure, MetadataRequest, MetadataResponse, Service};
use super::http;
use super::inquiry::{Findings, Inquiry, service_name};
use super::pace::{WITHOUT_NETWORK, pause};
use super::store::{self, StoreError};
use super::user_data::{UserDataRefusal, check};
use orlop_config::platform::{PlatformName, PlatformReport, REPORT_FILE, UserDataState};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// A connection by IPv6 takes so long at most: a network that drops it may be about to give the machine its IPv4 address.
const IPV6_CONNECT_MAX: Duration = Duration::from_millis(500);

/// Where the services are. The addresses are fixed; tests have others.
#[derive(Clone, Copy, Debug)]
pub struct Endpoints {
    /// The metadata service.
    pub metadata: SocketAddr,
    /// Azure's wire server.
    pub fabric: SocketAddr,
}

impl Default for Endpoints {
    fn default() -> Endpoints {
        Endpoints {
            metadata: (Ipv4Addr::new(169, 254, 169, 254), 80).into(),
            fabric: (Ipv4Addr::new(168, 63, 129, 16), 80).into(),
        }
    }
}

/// Times.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The agent waits so long for an answer at most.
    pub wait_max: Duration,
    /// A connection, and an answer, take so long at most.
    pub exchange_max: Duration,
    /// After refused user data the next round begins so much later.
    pub refused_pause: Duration,
    /// Tries of Azure's ready report.
    pub ready_tries: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            wait_max: Duration::from_secs(300),
            exchange_max: Duration::from_secs(10),
            refused_pause: Duration::from_secs(60),
            ready_tries: 30,
        }
    }
}

/// Messages to the unit.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Services.
    pub endpoints: Endpoints,
    /// Times.
    pub limits: Limits,
    /// The report of this boot.
    pub report: PathBuf,
    /// The state partition.
    pub var: PathBuf,
}

impl Default for Settings {
    fn default() -> Settings {
        let (endpoints, limits) = (Endpoints::default(), Limits::default());
        Settings { endpoints, limits, report: REPORT_FILE.into(), var: "/var".into() }
    }
}

/// The unit's ways to the outside.
pub trait ProvisionOutlet {
    /// The agent need not wait any longer. Called once.
    fn ready(&mut self);
    /// Something that a person at a console must know, one line.
    fn say(&mut self, line: &str);
}

/// Runs until the platform has answered; returns at once where it is not asked.
///
/// # Errors
/// The report of this boot cannot be read, or what counts cannot be kept.
pub async fn run(settings: &Settings, outlet: &mut dyn ProvisionOutlet) -> Result<(), StoreError> {
    let report = store::read(&settings.report)?;
    let platform = report.platform;
    let mut unit = ProvisionUnit {
        settings,
        outlet,
        service: service_name(platform),
        deadline: Instant::now() + settings.limits.wait_max,
        is_ready: false,
        said: String::new(),
    };
    if report.user_data == UserDataState::Pending {
        unit.ask(report).await?;
    }
    unit.ready();
    if platform == PlatformName::Azure {
        unit.report_ready().await;
    }
    Ok(())
}

struct ProvisionUnit<'a> {
    settings: &'a Settings,
    outlet: &'a mut dyn ProvisionOutlet,
    /// The beginning of every line.
    service: String,
    /// When the agent starts in any case.
    deadline: Instant,
    is_ready: bool,
    /// The last fault or refusal that was said.
    said: String,
}

impl ProvisionUnit<'_> {
    /// Asks until there is an answer that counts.
    async fn ask(&mut self, mut report: PlatformReport) -> Result<(), StoreError> {
        while let Some(inquiry) = Inquiry::new(report.platform) {
            let Findings { user_data, facts } = self.round(inquiry, &mut report).await;
            report.facts = facts;
            let checked = user_data.and_then(|document| match document {
                Some(text) => check(&text, &self.service).map(|()| Some(text)),
                None => Ok(None),
            });
            match checked {
                Ok(document) => return self.keep(report, document.as_deref()),
                Err(refusal) => self.refuse(&mut report, &refusal)?,
            }
            self.ready();
            sleep_until(Instant::now() + self.settings.limits.refused_pause).await;
        }
        Ok(())
    }

    /// All questions once, each until it is answered or given up.
    async fn round(&mut self, mut inquiry: Inquiry, report: &mut PlatformReport) -> Findings {
        let mut failures = 0;
        while let Some(request) = inquiry.request() {
            match inquiry.answer(self.exchange(&request).await) {
                Ok(()) => {
                    failures = 0;
                    if inquiry.request().is_some() {
                        self.overdue("its answers take too long", report);
                    }
                }
                Err(fault) => {
                    self.fault(&fault.to_string(), report);
                    let soon = fault.is_before_network() && !self.is_ready;
                    failures = if soon { 0 } else { failures + 1 };
                    self.wait(if soon { WITHOUT_NETWORK } else { pause(failures) }).await;
                }
            }
        }
        inquiry.into_findings()
    }

    /// By IPv4, and by IPv6 where the machine has no IPv4 and the platform an address.
    async fn exchange(&self, request: &MetadataRequest) -> Result<MetadataResponse, ExchangeFailure> {
        let address = match request.service {
            Service::Metadata => self.settings.endpoints.metadata,
            Service::Fabric => self.settings.endpoints.fabric,
        };
        let limit = self.settings.limits.exchange_max;
        let answer = http::exchange(address, request, limit, limit).await;
        let (Err(ExchangeFailure::NoRoute(_)), Some(ip)) = (&answer, request.ipv6) else { return answer };
        let second = SocketAddr::from((ip, address.port()));
        match http::exchange(second, request, IPV6_CONNECT_MAX, limit).await {
            Err(ExchangeFailure::NoRoute(_) | ExchangeFailure::NoConnection(_)) => answer,
            by_ipv6 => by_ipv6,
        }
    }

    /// In the log once; on the consoles only when the agent has waited long enough.
    fn fault(&mut self, fault: &str, report: &mut PlatformReport) {
        if self.said != fault {
            tracing::warn!(service = self.service, fault, "the platform's metadata service does not answer");
            fault.clone_into(&mut self.said);
        }
        self.overdue(fault, report);
    }

    /// Lets the agent start when it has waited long enough, and says why in the report of this boot.
    fn overdue(&mut self, why: &str, report: &mut PlatformReport) {
        if self.is_ready || Instant::now() < self.deadline {
            return;
        }
        let line = format!("{}: {why}: standalone until it answers", self.service);
        self.outlet.say(&line);
        report.problem = Some(line);
        if let Err(error) = store::show(&self.settings.report, report) {
            tracing::warn!(error = &error as &dyn std::error::Error, "the report does not say why");
        }
        self.ready();
    }

    /// Until the next try, or until the agent has waited long enough, whichever is earlier.
    async fn wait(&mut self, pause: Duration) {
        let next = Instant::now() + pause;
        sleep_until(if self.is_ready { next } else { next.min(self.deadline) }).await;
    }

    fn ready(&mut self) {
        if !self.is_ready {
            self.is_ready = true;
            self.outlet.ready();
        }
    }

    fn keep(&mut self, mut report: PlatformReport, document: Option<&str>) -> Result<(), StoreError> {
        report.problem = None;
        report.user_data = if document.is_some() { UserDataState::Kept } else { UserDataState::None };
        store::keep(&self.settings.var, document, &report)?;
        store::show(&self.settings.report, &report)?;
        let found = if document.is_some() { "a configuration" } else { "no user data: defaults" };
        self.outlet.say(&format!("{}: {found}", self.service));
        Ok(())
    }

    fn refuse(&mut self, report: &mut PlatformReport, refusal: &UserDataRefusal) -> Result<(), StoreError> {
        let why = refusal.to_string();
        if self.said != why {
            self.outlet
                .say(&format!("{}: user data REFUSED: {why}: standalone until they count", self.service));
        }
        report.problem = Some(why.clone());
        self.said = why;
        store::show(&self.settings.report, report)
    }

    /// Tells Azure that the machine is there. It is not worth a node: after the last try the platform is left to its own view.
    async fn report_ready(&mut self) {
        for failures in 1..=self.settings.limits.ready_tries {
            match self.try_report().await {
                Ok(()) => {
                    tracing::info!("Azure has the word that the machine is ready");
                    return;
                }
                Err(why) => {
                    tracing::warn!(why, failures, "Azure's wire server does not take the ready report")
                }
            }
            sleep_until(Instant::now() + pause(failures)).await;
        }
        let line =
            "Azure does not take the report that this machine is ready, and may take it for a failed one";
        self.outlet.say(line);
    }

    async fn try_report(&self) -> Result<(), String> {
        let answer = self.exchange(&azure::goal_state_request()).await.map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let state = GoalState::parse(&text).filter(|_| answer.status == 200);
        let state =
            state.ok_or_else(|| format!("the goal state has status {} or no identifiers", answer.status))?;
        match self.exchange(&azure::ready_request(&state)).await {
            Ok(answer) if (200..300).contains(&answer.status) => Ok(()),
            Ok(answer) => Err(format!("status {}", answer.status)),
            Err(failure) => Err(failure.to_string()),
        }
    }
}
