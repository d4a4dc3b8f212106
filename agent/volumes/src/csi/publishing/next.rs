//! What follows an answer on the way of a volume to a pod.
//!
//! In: the step that was taken, its answer. Out: the next one, or the failure that ends the way; the words are upstream's.
//! Invariants: see [`super`].

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::{Answer, At, End, Facts, Publishing, SecretFor, Tokens};
use crate::attach::{Attached, Fits, Held};
use crate::csi::request::Capabilities;
use crate::csi::steps::{CallFailed, Failure};
use crate::csi::{CsiVolume, no_secret, unregistered};
use crate::{
    MAP_BLOCK_VOLUME, MAP_POD_DEVICE, MOUNT_DEVICE, Resize, SET_UP, SET_UP_DEVICE, WAIT_FOR_ATTACH, selinux,
    step_failed,
};

/// What one pod alone may have, and another one has (upstream's words).
const IN_USE: &str = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
/// The field that names the Secret of NodeStageVolume.
const STAGE_SECRET: &str = "NodeStageSecretRef";

type Next = Result<At, Failure>;

fn end(end: End) -> At {
    At::End(end)
}

impl Publishing {
    pub(super) fn next(&mut self, at: At, answer: Answer) -> Next {
        match (at, answer) {
            (At::Object, Answer::Object(object)) => {
                let object = object.map_err(Failure::retry)?;
                self.terms = self.csi.terms(object.as_deref()).map_err(Failure::retry)?;
                self.csi = self.csi.on(&self.terms);
                Ok(if self.csi.persistent.is_some() { At::Wish } else { At::Driver })
            }
            (At::Wish, Answer::Attached(attached)) => Ok(self.wished(attached)),
            (At::NoRoom, Answer::Attachment(found)) => {
                let full = found.is_ok_and(|found| CsiVolume::finds_no_room(&found));
                Ok(if full { At::AskLimits } else { end(End::Unattached { full: false }) })
            }
            (At::AskLimits, Answer::Done) => Ok(end(End::Unattached { full: true })),
            (At::Attachment, Answer::Attachment(found)) => {
                let attached = self.attached(found);
                self.attached = attached.map_err(|why| self.failed(WAIT_FOR_ATTACH, &why))?;
                Ok(At::Driver)
            }
            (At::Driver, Answer::Found(found)) => self.found(found),
            (At::Capabilities, Answer::Capabilities(driver)) => self.capable(driver),
            (At::Secret, Answer::Secret(secrets)) => {
                self.secrets = secrets.map_err(|why| Failure::retry(missing(self.secret(), &why)))?;
                Ok(if self.csi.persistent.is_some() { At::Turn } else { At::Capabilities })
            }
            (At::Turn | At::Facts, Answer::Facts(facts)) => Ok(self.began(facts)),
            (At::ReadDisk, Answer::Held(held)) => self.read(&held?),
            (at, answer) => self.next_of_stage(at, answer),
        }
    }

    fn next_of_stage(&mut self, at: At, answer: Answer) -> Next {
        match (at, answer) {
            (At::Unstaged, Answer::Done) => Ok(At::Unstage),
            (At::Unstage, Answer::Called(called)) => {
                called.map_err(|e| self.failed(MOUNT_DEVICE, &e.words))?;
                Ok(At::ForgetStage)
            }
            (At::ForgetStage, Answer::Node(done)) => {
                done.map_err(|e| self.failed(MOUNT_DEVICE, &e.message))?;
                Ok(self.fits())
            }
            // It is this pod's from here on: nobody gives it back under it.
            (At::RecordFirst, Answer::Recorded(new)) => {
                self.recorded = Some(new?);
                Ok(match (self.facts.staged, self.stage_secret()) {
                    (true, _) => self.staged(),
                    (false, Some(_)) => At::StageSecret,
                    (false, None) => At::RecordStage,
                })
            }
            (At::StageSecret, Answer::Secret(Ok(secrets))) => {
                self.stage_secrets = secrets;
                Ok(At::RecordStage)
            }
            (At::StageSecret, Answer::Secret(Err(why))) => {
                let why = self.failed(MOUNT_DEVICE, &missing(self.stage_secret(), &why));
                Ok(self.refused(why, true))
            }
            (At::RecordStage, Answer::Recorded(new)) => {
                let new = new.map_err(|e| self.failed(MOUNT_DEVICE, &e.message))?;
                Ok(At::Stage { new })
            }
            (At::Stage { .. }, Answer::Called(Ok(()))) => Ok(At::Staged),
            (At::Stage { new, .. }, Answer::Called(Err(e))) => {
                let why = self.failed(MOUNT_DEVICE, &e.words);
                Ok(if new && e.is_final { At::UndoStage(why) } else { self.refused(why, e.is_final) })
            }
            // If the record cannot be removed the driver is asked to let go.
            (At::UndoStage(why), Answer::Node(_)) => Ok(self.refused(why, true)),
            // If the record cannot be removed the driver is asked to let go when the pod's volumes are taken away.
            (At::Release(why), Answer::Node(_)) => Err(why),
            (At::Staged, Answer::Done) => Ok(self.staged()),
            (at, answer) => self.next_of_target(at, answer),
        }
    }

    fn next_of_target(&mut self, at: At, answer: Answer) -> Next {
        match (at, answer) {
            (At::Tokens, Answer::Tokens(tokens)) => {
                self.tokens = tokens.map_err(Failure::retry)?;
                Ok(self.publishing())
            }
            (At::Record, Answer::Recorded(new)) => {
                self.recorded = Some(new?);
                Ok(At::Publish)
            }
            (At::Publish, Answer::Called(Ok(()))) if self.csi.block.is_some() => Ok(At::Keep),
            (At::Publish, Answer::Called(Ok(()))) => Ok(self.giving()),
            (At::Publish, Answer::Called(Err(CallFailed { words, is_final }))) => {
                let why = match self.csi.block {
                    Some(_) => self.failed(MAP_POD_DEVICE, &words),
                    None => Failure::retry(words),
                };
                Ok(self.refused(why, is_final))
            }
            // What is published stays what it is for as long as the pod has it.
            (At::Keep, Answer::Node(kept)) => {
                kept.map_err(|e| self.failed(MAP_BLOCK_VOLUME, &e.message))?;
                Ok(self.giving())
            }
            (At::Give(_), Answer::Given(given)) => Ok(if given? { self.grow() } else { end(End::Giving) }),
            (At::Grow, Answer::Grown(grown)) => self.grown(grown),
            (At::Published, Answer::Done) => Ok(self.ended()),
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

    fn wished(&self, attached: Attached) -> At {
        match attached {
            _ if !self.terms.attach => At::Driver,
            Attached::Yes => At::Attachment,
            // The volume has waited long: its driver may say that it has no room for it on this node. Before that is the answer
            // the cluster knows how much room there is: the pod's successor must not come here.
            _ if self.csi.overdue && self.terms.recounts => At::NoRoom,
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

    fn found(&self, found: bool) -> Next {
        match (&self.csi.persistent, found) {
            (of, false) if self.settled => Ok(self.kept(of.is_some())),
            (None, false) => Err(Failure::retry(unregistered("mounter.SetUpAt", &self.csi.driver))),
            (Some(_), false) => {
                Err(self.failed(MOUNT_DEVICE, &unregistered("attacher.MountDevice", &self.csi.driver)))
            }
            (None, true) if !self.settled && self.secret().is_some() => Ok(At::Secret),
            (_, true) => Ok(At::Capabilities),
        }
    }

    fn capable(&mut self, driver: Result<Capabilities, String>) -> Next {
        self.driver = match (driver, &self.csi.persistent) {
            (Ok(driver), _) => driver,
            (Err(_), of) if self.settled => return Ok(self.kept(of.is_some())),
            (Err(why), None) => return Err(Failure::retry(why)),
            (Err(why), Some(_)) => return Err(self.failed(MOUNT_DEVICE, &why)),
        };
        Ok(match &self.csi.persistent {
            _ if self.settled && self.growing().is_none() => self.kept(false),
            Some(_) if !self.settled && self.secret().is_some() => At::Secret,
            Some(_) => At::Turn,
            None => At::Facts,
        })
    }

    /// The settled volume stays as it is.
    fn kept(&self, again: bool) -> At {
        let resize = self.resize.clone();
        end(End::Published { renew_after: None, again, resize, labelled: false })
    }

    fn began(&mut self, facts: Facts) -> At {
        self.facts = facts;
        match &self.csi.persistent {
            _ if self.settled => At::Grow,
            Some(of) if of.one_pod || self.terms.labels => At::ReadDisk,
            Some(_) => self.fits(),
            None => self.staged(),
        }
    }

    /// Other pods may have the volume, and it has one label for all.
    fn read(&mut self, held: &Held) -> Next {
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
                At::Unstaged
            }
            _ => self.fits(),
        })
    }

    fn fits(&self) -> At {
        if self.stages() { At::RecordFirst } else { self.staged() }
    }

    /// The driver refused, for good or not: the pod's record goes if it is new and nothing of the volume can be here.
    fn refused(&self, why: Failure, is_final: bool) -> At {
        if is_final && self.recorded == Some(true) { At::Release(why) } else { end(End::Failed(why)) }
    }

    /// It is staged, if its driver stages.
    fn staged(&self) -> At {
        if self.terms.tokens.is_empty() { self.publishing() } else { At::Tokens }
    }

    fn publishing(&self) -> At {
        let wanted = (self.terms.again || !self.facts.published) && !self.facts.walked;
        match self.recorded {
            _ if !wanted => self.giving(),
            Some(_) => At::Publish,
            None => At::Record,
        }
    }

    /// What is published becomes the group's, if the driver does not do that.
    fn giving(&self) -> At {
        let new = self.terms.again || !self.facts.published || self.facts.walked;
        let by_node = new && !self.driver.gives_groups && self.csi.node_gives_group(&self.terms);
        self.group.filter(|_| by_node).map_or_else(|| self.grow(), At::Give)
    }

    fn grow(&self) -> At {
        if self.growing().is_some() { At::Grow } else { At::Published }
    }

    fn grown(&mut self, grown: Result<Option<Resize>, String>) -> Next {
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
        Ok(if self.settled { self.kept(true) } else { At::Published })
    }

    fn ended(&mut self) -> At {
        let Tokens { renew_after, .. } = self.tokens;
        end(End::Published {
            renew_after,
            // Nobody tells of a claim that has grown.
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
