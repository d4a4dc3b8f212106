//! What follows an answer on the way of a volume to a pod.
//!
//! In: the step that was taken, its answer. Out: the next one, or the failure that ends the way; the words are upstream's.
//! Invariants: see [`super`].

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::{End, Facts, PublishAnswer, PublishPosition, Publishing, SecretFor, Tokens};
use crate::attach::{Attached, Fits, VolumeOnDisk};
use crate::csi::failures::{CallFailed, Failure};
use crate::csi::request::Capabilities;
use crate::csi::{CsiVolume, no_secret, unregistered};
use crate::{
    MAP_BLOCK_VOLUME, MAP_POD_DEVICE, MOUNT_DEVICE, Resize, SET_UP, SET_UP_DEVICE, WAIT_FOR_ATTACH, selinux,
    step_failed,
};

/// What one pod alone may have, and another one has (upstream's words).
const IN_USE: &str = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
/// The field that names the Secret of NodeStageVolume.
const STAGE_SECRET: &str = "NodeStageSecretRef";

type NextResult = Result<PublishPosition, Failure>;

fn end(end: End) -> PublishPosition {
    PublishPosition::End(end)
}

impl Publishing {
    pub(super) fn next(&mut self, at: PublishPosition, answer: PublishAnswer) -> NextResult {
        match (at, answer) {
            (PublishPosition::Object, PublishAnswer::Object(object)) => {
                let object = object.map_err(Failure::retry)?;
                self.terms = self.csi.terms(object.as_deref()).map_err(Failure::retry)?;
                self.csi = self.csi.on(&self.terms);
                Ok(if self.csi.persistent.is_some() {
                    PublishPosition::Wish
                } else {
                    PublishPosition::Driver
                })
            }
            (PublishPosition::Wish, PublishAnswer::Attached(attached)) => Ok(self.wished(attached)),
            (PublishPosition::NoRoom, PublishAnswer::Attachment(found)) => {
                let full = found.is_ok_and(|found| CsiVolume::finds_no_room(&found));
                Ok(if full { PublishPosition::AskLimits } else { end(End::Unattached { full: false }) })
            }
            (PublishPosition::AskLimits, PublishAnswer::Done) => Ok(end(End::Unattached { full: true })),
            (PublishPosition::Attachment, PublishAnswer::Attachment(found)) => {
                let attached = self.attached(found);
                self.attached = attached.map_err(|why| self.failed(WAIT_FOR_ATTACH, &why))?;
                Ok(PublishPosition::Driver)
            }
            (PublishPosition::Driver, PublishAnswer::Found(found)) => self.found(found),
            (PublishPosition::Capabilities, PublishAnswer::Capabilities(driver)) => self.capable(driver),
            (PublishPosition::Secret, PublishAnswer::Secret(secrets)) => {
                self.secrets = secrets.map_err(|why| Failure::retry(missing(self.secret(), &why)))?;
                Ok(if self.csi.persistent.is_some() {
                    PublishPosition::Turn
                } else {
                    PublishPosition::Capabilities
                })
            }
            (PublishPosition::Turn | PublishPosition::Facts, PublishAnswer::Facts(facts)) => {
                Ok(self.began(facts))
            }
            (PublishPosition::ReadDisk, PublishAnswer::Held(held)) => self.read(&held?),
            (at, answer) => self.next_of_stage(at, answer),
        }
    }

    fn next_of_stage(&mut self, at: PublishPosition, answer: PublishAnswer) -> NextResult {
        match (at, answer) {
            (PublishPosition::Unstaged, PublishAnswer::Done) => Ok(PublishPosition::Unstage),
            (PublishPosition::Unstage, PublishAnswer::Called(called)) => {
                called.map_err(|e| self.failed(MOUNT_DEVICE, &e.words))?;
                Ok(PublishPosition::ForgetStage)
            }
            (PublishPosition::ForgetStage, PublishAnswer::Node(done)) => {
                done.map_err(|e| self.failed(MOUNT_DEVICE, &e.message))?;
                Ok(self.fits())
            }
            // The volume is this pod's from here on: no other task gives it back to the driver.
            (PublishPosition::RecordFirst, PublishAnswer::Recorded(new)) => {
                self.recorded = Some(new?);
                Ok(match (self.facts.staged, self.stage_secret()) {
                    (true, _) => self.staged(),
                    (false, Some(_)) => PublishPosition::StageSecret,
                    (false, None) => PublishPosition::RecordStage,
                })
            }
            (PublishPosition::StageSecret, PublishAnswer::Secret(Ok(secrets))) => {
                self.stage_secrets = secrets;
                Ok(PublishPosition::RecordStage)
            }
            (PublishPosition::StageSecret, PublishAnswer::Secret(Err(why))) => {
                let why = self.failed(MOUNT_DEVICE, &missing(self.stage_secret(), &why));
                Ok(self.refused(why, true))
            }
            (PublishPosition::RecordStage, PublishAnswer::Recorded(new)) => {
                let new = new.map_err(|e| self.failed(MOUNT_DEVICE, &e.message))?;
                Ok(PublishPosition::Stage { new })
            }
            (PublishPosition::Stage { .. }, PublishAnswer::Called(Ok(()))) => Ok(PublishPosition::Staged),
            (PublishPosition::Stage { new, .. }, PublishAnswer::Called(Err(e))) => {
                let why = self.failed(MOUNT_DEVICE, &e.words);
                Ok(if new && e.is_final {
                    PublishPosition::UndoStage(why)
                } else {
                    self.refused(why, e.is_final)
                })
            }
            // If the record cannot be removed the driver is asked to let go.
            (PublishPosition::UndoStage(why), PublishAnswer::Node(_)) => Ok(self.refused(why, true)),
            // If the record cannot be removed the driver is asked to let go when the pod's volumes are taken away.
            (PublishPosition::Release(why), PublishAnswer::Node(_)) => Err(why),
            (PublishPosition::Staged, PublishAnswer::Done) => Ok(self.staged()),
            (at, answer) => self.next_of_target(at, answer),
        }
    }

    fn next_of_target(&mut self, at: PublishPosition, answer: PublishAnswer) -> NextResult {
        match (at, answer) {
            (PublishPosition::Tokens, PublishAnswer::Tokens(tokens)) => {
                self.tokens = tokens.map_err(Failure::retry)?;
                Ok(self.publishing())
            }
            (PublishPosition::Record, PublishAnswer::Recorded(new)) => {
                self.recorded = Some(new?);
                Ok(PublishPosition::Publish)
            }
            (PublishPosition::Publish, PublishAnswer::Called(Ok(()))) if self.csi.block.is_some() => {
                Ok(PublishPosition::Keep)
            }
            (PublishPosition::Publish, PublishAnswer::Called(Ok(()))) => Ok(self.giving()),
            (PublishPosition::Publish, PublishAnswer::Called(Err(CallFailed { words, is_final }))) => {
                let why = match self.csi.block {
                    Some(_) => self.failed(MAP_POD_DEVICE, &words),
                    None => Failure::retry(words),
                };
                Ok(self.refused(why, is_final))
            }
            // What is published stays what it is for as long as the pod has it.
            (PublishPosition::Keep, PublishAnswer::Node(kept)) => {
                kept.map_err(|e| self.failed(MAP_BLOCK_VOLUME, &e.message))?;
                Ok(self.giving())
            }
            (PublishPosition::Give(_), PublishAnswer::Given(given)) => {
                Ok(if given? { self.grow() } else { end(End::Giving) })
            }
            (PublishPosition::Grow, PublishAnswer::Grown(grown)) => self.grown(grown),
            (PublishPosition::Published, PublishAnswer::Done) => Ok(self.ended()),
            _ => Err(Failure::mixed_up()),
        }
    }

    /// The words of a step.
    fn failed(&self, step: &str, why: &str) -> Failure {
        let step = match step {
            WAIT_FOR_ATTACH if self.csi.block.is_some() => "MapVolume.WaitForAttach",
            MOUNT_DEVICE | SET_UP if self.csi.block.is_some() => SET_UP_DEVICE,
            step => step,
        };
        Failure::retry(step_failed(step, &self.csi.volume, why))
    }

    fn wished(&self, attached: Attached) -> PublishPosition {
        match attached {
            _ if !self.terms.attach => PublishPosition::Driver,
            Attached::Yes => PublishPosition::Attachment,
            // The volume has waited long: its driver may say that it has no room for it on this node. Before that is the answer
            // the cluster knows how much room there is: the pod's successor must not be bound to this node.
            _ if self.csi.overdue && self.terms.recounts => PublishPosition::NoRoom,
            _ => end(End::Unattached { full: false }),
        }
    }

    /// What the driver's controller says of the volume and this node.
    fn attached(
        &self,
        found: Result<Box<VolumeAttachment>, String>,
    ) -> Result<BTreeMap<String, String>, String> {
        let (handle, name) = (&self.csi.handle, self.csi.attachment());
        let found = found
            .map_err(|why| format!("volume {handle} has GET error for volume attachment {name}: {why}"))?;
        let attached = self.csi.attached(&found)?;
        attached.ok_or_else(|| format!("volume {handle} is not attached for volume attachment {name}"))
    }

    fn found(&self, found: bool) -> NextResult {
        match (&self.csi.persistent, found) {
            (of, false) if self.settled => Ok(self.kept(of.is_some())),
            (None, false) => Err(Failure::retry(unregistered("mounter.SetUpAt", &self.csi.driver))),
            (Some(_), false) => {
                Err(self.failed(MOUNT_DEVICE, &unregistered("attacher.MountDevice", &self.csi.driver)))
            }
            (None, true) if !self.settled && self.secret().is_some() => Ok(PublishPosition::Secret),
            (_, true) => Ok(PublishPosition::Capabilities),
        }
    }

    fn capable(&mut self, driver: Result<Capabilities, String>) -> NextResult {
        self.driver = match (driver, &self.csi.persistent) {
            (Ok(driver), _) => driver,
            (Err(_), of) if self.settled => return Ok(self.kept(of.is_some())),
            (Err(why), None) => return Err(Failure::retry(why)),
            (Err(why), Some(_)) => return Err(self.failed(MOUNT_DEVICE, &why)),
        };
        Ok(match &self.csi.persistent {
            _ if self.settled && self.growing().is_none() => self.kept(false),
            Some(_) if !self.settled && self.secret().is_some() => PublishPosition::Secret,
            Some(_) => PublishPosition::Turn,
            None => PublishPosition::Facts,
        })
    }

    /// The settled volume stays as it is.
    fn kept(&self, again: bool) -> PublishPosition {
        let resize = self.resize.clone();
        end(End::Published { renew_after: None, again, resize, labelled: false })
    }

    fn began(&mut self, facts: Facts) -> PublishPosition {
        self.facts = facts;
        match &self.csi.persistent {
            _ if self.settled => PublishPosition::Grow,
            Some(of) if of.one_pod || self.terms.labels => PublishPosition::ReadDisk,
            Some(_) => self.fits(),
            None => self.staged(),
        }
    }

    /// Other pods may have the volume, and it has one label for all.
    fn read(&mut self, held: &VolumeOnDisk) -> NextResult {
        let one_pod = self.csi.persistent.as_ref().is_some_and(|of| of.one_pod);
        if one_pod && held.pods.iter().any(|pod| *pod != self.pod) {
            return Err(self.failed(SET_UP, IN_USE));
        }
        Ok(match held.fits(&self.pod, self.csi.label()) {
            Fits::No(there) if self.terms.labels => {
                let why = selinux::conflict(&self.csi.volume, &there, self.csi.label());
                end(End::Unprocessed { why })
            }
            Fits::Anew if self.terms.labels => {
                self.facts.staged = false;
                PublishPosition::Unstaged
            }
            _ => self.fits(),
        })
    }

    fn fits(&self) -> PublishPosition {
        if self.stages() { PublishPosition::RecordFirst } else { self.staged() }
    }

    /// The driver refused, for good or not: the pod's record is removed if it is new and nothing of the volume can be
    /// here.
    fn refused(&self, why: Failure, is_final: bool) -> PublishPosition {
        if is_final && self.recorded == Some(true) {
            PublishPosition::Release(why)
        } else {
            end(End::Failed(why))
        }
    }

    /// It is staged, if its driver stages.
    fn staged(&self) -> PublishPosition {
        if self.terms.tokens.is_empty() { self.publishing() } else { PublishPosition::Tokens }
    }

    fn publishing(&self) -> PublishPosition {
        let wanted = (self.terms.again || !self.facts.published) && !self.facts.walked;
        match self.recorded {
            _ if !wanted => self.giving(),
            Some(_) => PublishPosition::Publish,
            None => PublishPosition::Record,
        }
    }

    /// What is published becomes the group's, if the driver does not do that.
    fn giving(&self) -> PublishPosition {
        let new = self.terms.again || !self.facts.published || self.facts.walked;
        let by_node = new && !self.driver.gives_groups && self.csi.node_gives_group(&self.terms);
        self.group.filter(|_| by_node).map_or_else(|| self.grow(), PublishPosition::Give)
    }

    fn grow(&self) -> PublishPosition {
        // For a read-only volume the driver gets the growth once, before the volume is in use.
        let grows = self.growing().is_some() || (self.expandable().is_some() && !self.in_use());
        if grows { PublishPosition::Grow } else { PublishPosition::Published }
    }

    fn grown(&mut self, grown: Result<Option<Resize>, String>) -> NextResult {
        self.resize = match grown {
            Ok(resize) => resize,
            // Containers have it: they may go on as they are.
            Err(why) if self.in_use() => Some(Resize::Failed(why)),
            Err(why) => {
                let step = match self.csi.block {
                    Some(_) => "MapVolume.MarkVolumeAsMounted failed while expanding volume",
                    None => "MountVolume.Setup failed while expanding volume",
                };
                return Err(Failure::retry(format!("{step} for volume {:?} : {why}", self.csi.volume)));
            }
        };
        Ok(if self.settled { self.kept(true) } else { PublishPosition::Published })
    }

    fn ended(&mut self) -> PublishPosition {
        let Tokens { renew_after, .. } = self.tokens;
        end(End::Published {
            renew_after,
            // No watch reports a claim that has grown.
            again: self.terms.again || self.growing().is_some(),
            resize: self.resize.take(),
            labelled: !self.csi.label().is_empty(),
        })
    }
}

/// The words about a Secret that cannot be had.
fn missing(secret: Option<SecretFor>, why: &str) -> String {
    match secret {
        Some(SecretFor::Inline(of)) => no_secret(None, &of.namespace, &of.name, why),
        Some(SecretFor::Publish(of)) => no_secret(None, &of.namespace, &of.name, why),
        Some(SecretFor::Stage(of)) => no_secret(Some(STAGE_SECRET), &of.namespace, &of.name, why),
        None => why.to_owned(),
    }
}
