//! An API server in memory: objects with versions, watches, the graceful-deletion protocol, the node's
//! permissions.
//!
//! A pure state machine for the simulated world and for HTTP fakes. No clock, no randomness: time comes in as
//! [`Wall`], UIDs and versions count up. Faults (errors, lost replies, partitions) belong to the transport.
//!
//! ```text
//! Request{who, key, verb} ──► serve() ──► access ─► strategy (create, update, status, delete) ─► store ─► Value | Status
//! ApiCall (the node's)    ──► call()  ──► serve() ──► ApiResult
//! (resource, selector)    ──► list(), changes_since(version) ──► WatchLine… | 410
//! ```
//! For an HTTP fake: map method and path to `Request`, answer `Ok` with its JSON and [`Status`] with `code`
//! and [`Status::body`]; a watch is [`FakeApi::list`] then [`FakeApi::changes_since`] with the version of the
//! last line, [`WatchLine::body`] for each, a [`WatchLine::Bookmark`] with [`FakeApi::version`] now and then.
//! Users, scheduler and controllers are [`Requester::Admin`] and [`actors`]. [`FakeApi::forget_history`] makes the
//! next continuation answer 410.
//!
//! Invariants: every change has its own version, greater than all before; a request that changes nothing
//! keeps the version; a UID is never used twice; a refused request changes nothing. Upstream:
//! pkg/registry/{core/pod,core/node,coordination/lease}, apiserver/pkg/registry,
//! plugin/pkg/admission/noderestriction.

mod access;
pub mod actors;
mod calls;
mod graceful;
pub mod merge;
pub mod resource;
pub mod reviews;
pub mod status;
mod strategy;
#[cfg(test)]
mod tests;
pub mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::time::Wall;
use serde_json::{Value, json};

pub use graceful::DeleteOptions;
pub use resource::{Key, Resource, Selector};
pub use status::Status;
pub use watch::{WatchLine, version_of};

use resource::{put, text};
use watch::{Change, History};

/// Client that sends a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requester {
    /// Everything is allowed: users, controllers, the test.
    Admin,
    /// `system:node:<name>`: the node authoriser and NodeRestriction are on.
    Node(String),
    /// A first-boot token, or another identity that may only request certificates.
    Bootstrapper,
}

/// Verb of a request with its content.
#[derive(Clone, Debug, PartialEq)]
pub enum Verb {
    /// GET.
    Get,
    /// POST; the key's name may be empty.
    Create(Value),
    /// PUT.
    Replace(Value),
    /// PATCH, `application/strategic-merge-patch+json`.
    Patch(Value),
    /// PATCH or PUT of the `status` subresource: the server ignores fields outside of `status` and `metadata`.
    PatchStatus(Value),
    /// DELETE.
    Delete(DeleteOptions),
}

impl Verb {
    /// The verb's name in RBAC.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::Create(_) => "create",
            Verb::Replace(_) => "update",
            Verb::Patch(_) | Verb::PatchStatus(_) => "patch",
            Verb::Delete(_) => "delete",
        }
    }
}

/// Number of changes that the server remembers: a watch that is farther behind must list again.
const WINDOW: usize = 1000;

/// The API server.
#[derive(Clone, Debug)]
pub struct FakeApi {
    objects: BTreeMap<Key, Arc<Value>>,
    history: History,
    version: u64,
    uids: u64,
    names: u64,
    /// Number of changes that the server remembers for watches.
    pub window: usize,
    /// Permissions to use the nodes' own API.
    pub reviews: reviews::Reviews,
}

impl Default for FakeApi {
    fn default() -> Self {
        FakeApi {
            objects: BTreeMap::new(),
            history: History::default(),
            version: 1,
            uids: 0,
            names: 0,
            window: WINDOW,
            reviews: reviews::Reviews::default(),
        }
    }
}

impl FakeApi {
    /// The newest version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// One object.
    #[must_use]
    pub fn object(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// The selected objects, by namespace and name, and the version of the list.
    #[must_use]
    pub fn list(&self, resource: Resource, selector: &Selector) -> (Vec<Arc<Value>>, u64) {
        let first = Key { resource, namespace: String::new(), name: String::new() };
        let of = self.objects.range(first..).take_while(|(k, _)| k.resource == resource);
        let found = of.filter(|(_, o)| selector.matches(o)).map(|(_, o)| Arc::clone(o)).collect();
        (found, self.version)
    }

    /// Changes for a watch that has seen everything up to `version`.
    ///
    /// # Errors
    /// 410: the window has moved on; list again.
    pub fn changes_since(
        &self,
        resource: Resource,
        selector: &Selector,
        version: u64,
    ) -> Result<Vec<WatchLine>, Status> {
        self.history.since(resource, selector, version)
    }

    /// Checks that `who` may list and watch this resource.
    ///
    /// # Errors
    /// 403.
    pub fn may_watch(&self, who: &Requester, resource: Resource, selector: &Selector) -> Result<(), Status> {
        access::watch(self, who, resource, selector)
    }

    /// Forgets the history: watches that are behind the newest version get 410.
    pub fn forget_history(&mut self) {
        self.history.shrink(0);
    }

    /// All objects, for [`FakeApi::restore`], without the history.
    #[must_use]
    pub fn backup(&self) -> FakeApi {
        FakeApi {
            objects: self.objects.clone(),
            history: History::starting_at(self.version),
            version: self.version,
            uids: self.uids,
            names: self.names,
            window: self.window,
            reviews: self.reviews.clone(),
        }
    }

    /// Restores all objects from `backup`, versions included, as a restored etcd does. Names and UIDs that were generated since are
    /// not generated again.
    pub fn restore(&mut self, backup: &FakeApi) {
        self.objects.clone_from(&backup.objects);
        self.version = backup.version;
        self.history = History::starting_at(backup.version);
    }

    /// Serves one request; `metadata` is the object's identity only for kinds with a name in the key.
    ///
    /// # Errors
    /// The server's refusal; nothing was changed.
    pub fn serve(
        &mut self,
        now: Wall,
        who: &Requester,
        key: &Key,
        verb: &Verb,
    ) -> Result<Arc<Value>, Status> {
        access::authorize(self, who, key, verb)?;
        match verb {
            Verb::Get => self.existing(key),
            Verb::Create(object) => self.create(now, who, key, object),
            Verb::Replace(object) => self.replace(now, who, key, object),
            Verb::Patch(patch) => self.patch(now, who, key, patch, false),
            Verb::PatchStatus(patch) => self.patch(now, who, key, patch, true),
            Verb::Delete(options) => self.delete(now, who, key, options),
        }
    }

    fn existing(&self, key: &Key) -> Result<Arc<Value>, Status> {
        self.objects.get(key).cloned().ok_or_else(|| Status::not_found(key))
    }

    fn create(
        &mut self,
        now: Wall,
        who: &Requester,
        key: &Key,
        object: &Value,
    ) -> Result<Arc<Value>, Status> {
        let mut object = object.clone();
        let key = self.name(key, &object)?;
        for (field, value) in
            [("apiVersion", key.resource.api_version().as_str()), ("kind", key.resource.kind())]
        {
            if let Some(object) = object.as_object_mut() {
                object.insert(field.to_owned(), json!(value));
            }
        }
        put(&mut object, "metadata", "name", Some(json!(key.name)));
        if key.resource.is_namespaced() {
            put(&mut object, "metadata", "namespace", Some(json!(key.namespace)));
        }
        strategy::before_create(&mut object, &key)?;
        access::admit_create(self, who, &key, &object)?;
        if self.objects.contains_key(&key) {
            return Err(Status::already_exists(&key));
        }
        self.uids += 1;
        let uid = format!("{:08x}-0000-4000-8000-{:012x}", self.uids, self.uids);
        put(&mut object, "metadata", "uid", Some(json!(uid)));
        put(&mut object, "metadata", "creationTimestamp", Some(json!(strategy::timestamp(now))));
        Ok(self.store(key, object))
    }

    /// The key of a new object: from the path, or generated from `generateName`.
    fn name(&mut self, key: &Key, object: &Value) -> Result<Key, Status> {
        let (given, generate) = (text(object, "/metadata/name"), text(object, "/metadata/generateName"));
        let namespace = text(object, "/metadata/namespace");
        if key.resource.is_namespaced() && !namespace.is_empty() && namespace != key.namespace {
            let why = "the namespace of the provided object does not match the namespace sent on the request";
            return Err(Status::bad_request(why));
        }
        let name = match (key.name.as_str(), given, generate) {
            ("", "", "") => return Err(Status::invalid(key, "name or generateName is required")),
            ("", "", prefix) => {
                self.names += 1;
                format!("{prefix}{:05x}", self.names)
            }
            ("", given, _) => given.to_owned(),
            (named, _, _) => named.to_owned(),
        };
        Ok(Key { name, ..key.clone() })
    }

    fn replace(
        &mut self,
        now: Wall,
        who: &Requester,
        key: &Key,
        object: &Value,
    ) -> Result<Arc<Value>, Status> {
        let uid = text(object, "/metadata/uid");
        let Some(old) = self.objects.get(key).cloned() else {
            let creates = matches!(key.resource, Resource::Leases | Resource::Events);
            return match (creates, uid) {
                (true, "") => self.create(now, who, key, object),
                (true, _) => Err(Status::conflict(key, &uid_mismatch(uid, ""))),
                (false, _) => Err(Status::not_found(key)),
            };
        };
        let existing = text(&old, "/metadata/uid");
        if !uid.is_empty() && uid != existing {
            return Err(Status::conflict(key, &uid_mismatch(uid, existing)));
        }
        match version_of(object) {
            0 if key.resource == Resource::Leases => {
                return Err(Status::invalid(
                    key,
                    "metadata.resourceVersion: Invalid value: 0: must be specified for an update",
                ));
            }
            0 => {}
            v if v != version_of(&old) => {
                let why = "the object has been modified; please apply your changes to the latest version and \
                           try again";
                return Err(Status::conflict(key, why));
            }
            _ => {}
        }
        self.update(who, key, &old, object.clone(), false)
    }

    fn patch(
        &mut self,
        _now: Wall,
        who: &Requester,
        key: &Key,
        patch: &Value,
        status: bool,
    ) -> Result<Arc<Value>, Status> {
        let old = self.existing(key)?;
        let new = merge::apply(&old, patch).map_err(|e| Status::bad_request(&e.to_string()))?;
        self.update(who, key, &old, new, status)
    }

    fn update(
        &mut self,
        who: &Requester,
        key: &Key,
        old: &Arc<Value>,
        mut new: Value,
        status: bool,
    ) -> Result<Arc<Value>, Status> {
        access::admit_update(who, key, old, &new)?;
        if version_of(&new) != 0 && version_of(&new) != version_of(old) {
            return Err(Status::conflict(key, "the object has been modified"));
        }
        strategy::before_update(key, old, &mut new, status)?;
        resource::keep_meta(&mut new, old, "resourceVersion");
        if new == **old {
            return Ok(Arc::clone(old));
        }
        if graceful::is_over(&new) {
            self.remove(key, new.clone());
            return Ok(Arc::new(new));
        }
        Ok(self.store(key.clone(), new))
    }

    fn delete(
        &mut self,
        now: Wall,
        who: &Requester,
        key: &Key,
        options: &DeleteOptions,
    ) -> Result<Arc<Value>, Status> {
        let old = self.existing(key)?;
        // A deletion passes admission after its preconditions, and only if it changes something.
        let outcome = graceful::before_delete(now, key, &old, options)?;
        if !matches!(outcome, graceful::Outcome::Pending) {
            access::admit_delete(who, key, &old)?;
        }
        match outcome {
            graceful::Outcome::Pending => Ok(old),
            graceful::Outcome::Marked(object) => Ok(self.store(key.clone(), object)),
            graceful::Outcome::Now(marked) => {
                let last = match marked {
                    Some(object) => Value::clone(&self.store(key.clone(), object)),
                    None => Value::clone(&old),
                };
                self.remove(key, last.clone());
                Ok(Arc::new(last))
            }
        }
    }

    fn store(&mut self, key: Key, mut object: Value) -> Arc<Value> {
        self.version += 1;
        put(&mut object, "metadata", "resourceVersion", Some(json!(self.version.to_string())));
        let object = Arc::new(object);
        let resource = key.resource;
        let before = self.objects.insert(key, Arc::clone(&object));
        self.note(resource, before, Arc::clone(&object), false);
        object
    }

    fn remove(&mut self, key: &Key, mut last: Value) {
        self.version += 1;
        put(&mut last, "metadata", "resourceVersion", Some(json!(self.version.to_string())));
        let before = self.objects.remove(key);
        self.note(key.resource, before, Arc::new(last), true);
    }

    fn note(&mut self, resource: Resource, before: Option<Arc<Value>>, after: Arc<Value>, removed: bool) {
        let version = self.version;
        self.history.push(Change { version, resource, before, after, removed }, self.window);
    }
}

fn uid_mismatch(asked: &str, found: &str) -> String {
    format!("Precondition failed: UID in precondition: {asked}, UID in object meta: {found}")
}
