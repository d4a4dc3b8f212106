//! A case, its context, and its verdict "skipped".

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::run::Run;

/// Test levels of docs/internals/testing.md that this harness runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Real processes against fakes, or artefacts on disk: no node.
    L3,
    /// The native node.
    L4n,
    /// A booted VM.
    L4v,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::L3 => "L3",
            Level::L4n => "L4n",
            Level::L4v => "L4v",
        })
    }
}

/// One case: a promise of the product, and the code that tries to refute it.
#[derive(Clone, Copy)]
pub struct Case {
    /// `area/name`.
    pub name: &'static str,
    /// The level at which it runs.
    pub level: Level,
    /// Expected duration on two cores without KVM, seconds.
    pub expected_s: u64,
    /// The promise, one line.
    pub about: &'static str,
    /// Cases with the same group run one after another and share one fixture ([`CaseContext::shared`]).
    pub group: Option<&'static str>,
    /// The code. An error is a failure, except [`Skip`].
    pub run: fn(&mut CaseContext<'_>) -> Result<()>,
}

/// Values that the cases of one file share.
#[derive(Clone, Copy, Debug)]
pub struct CaseDefaults {
    /// The level at which they run.
    pub level: Level,
    /// The group whose fixture they share.
    pub group: Option<&'static str>,
}

impl CaseDefaults {
    /// A case with these defaults: its name, expected seconds, promise, and code.
    #[must_use]
    pub const fn case(
        self,
        name: &'static str,
        expected_s: u64,
        about: &'static str,
        run: fn(&mut CaseContext<'_>) -> Result<()>,
    ) -> Case {
        Case { name, level: self.level, expected_s, about, group: self.group, run }
    }
}

/// Why a case is skipped for which the run has not the time.
pub const NO_TIME: &str = "no time was left for it";

/// The reason why a case cannot run on this machine.
#[derive(Clone, Debug)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// Ends a case as skipped, with the reason.
///
/// # Errors
/// Always: that is its purpose.
pub fn skip<T>(reason: impl Into<String>) -> Result<T> {
    Err(anyhow::Error::new(Skip(reason.into())))
}

/// A fixture that several cases of a group share; the runner drops it after the last one.
pub type SharedFixture = Option<Box<dyn Any + Send>>;

/// Marks a fixture that could not be made, with the reason if that is a reason to skip all cases that need it.
struct Broken(Option<Skip>);

/// Context of a running case.
pub struct CaseContext<'a> {
    /// The run it belongs to: ids, recorded resources.
    pub run: Arc<Run>,
    /// Directory of everything that a person needs after a failure; removed if the case passes.
    pub artefacts: PathBuf,
    /// The same for the group's fixture; removed if all cases of the group pass.
    pub shared_artefacts: PathBuf,
    /// The group's fixture; `None` until a case makes it.
    pub shared: &'a mut SharedFixture,
    /// Seed of everything random in the case; printed with a failure.
    pub seed: u64,
}

impl CaseContext<'_> {
    /// The group's fixture; the first case that needs it makes it with `make`.
    ///
    /// # Errors
    /// The error of `make`, now or for an earlier case of the group (it is not repeated), and a fixture of another type
    /// in the same group.
    pub fn shared_or<T: Any + Send>(
        &mut self,
        make: impl FnOnce(&Arc<Run>, &Path) -> Result<T>,
    ) -> Result<&mut T> {
        if self.shared.is_none() {
            std::fs::create_dir_all(&self.shared_artefacts)
                .with_context(|| format!("make {}", self.shared_artefacts.display()))?;
            match make(&self.run, &self.shared_artefacts) {
                Ok(fixture) => *self.shared = Some(Box::new(fixture)),
                Err(e) => {
                    *self.shared = Some(Box::new(Broken(e.downcast_ref::<Skip>().cloned())));
                    let dir = self.shared_artefacts.display();
                    return Err(e.context(format!("the group's fixture (its artefacts: {dir})")));
                }
            }
        }
        if let Some(Broken(why)) = self.shared.as_ref().and_then(|s| s.downcast_ref::<Broken>()) {
            match why {
                Some(why) => return Err(anyhow::Error::new(why.clone())),
                None => anyhow::bail!("the group's fixture could not be made: see the group's first failure"),
            }
        }
        self.shared
            .as_mut()
            .and_then(|s| s.downcast_mut::<T>())
            .context("the group has a fixture of another type")
    }
}

/// Seconds as a person reads them: `8 s`, `1 min 20 s`.
#[must_use]
pub fn human(duration: Duration) -> String {
    let s = duration.as_secs();
    if s >= 60 {
        format!("{} min {:02} s", s / 60, s % 60)
    } else if s >= 10 {
        format!("{s} s")
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}
