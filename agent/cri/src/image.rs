//! [`ImageService`] over CRI ImageService, [`ImagesInUse`] over `ListContainers` and, for what they mount, `ContainerStatus`. Pulling has no deadline: dropping the future
//! cancels it.

use std::collections::BTreeSet;

use agent_kubelet_api::drivers::{ImageService, ImagesInUse};
use agent_types::credential::Credential;
use agent_types::failure::{Class, DriverError};
use agent_types::runtime::image::ImageInfo;
use orlop_proto::cri::v1;
use tonic::Code;

use crate::CriClient;
use crate::client::{Call, MountedImages};
use crate::convert::observed;
use crate::error::CallError;

fn spec(image: &str) -> Option<v1::ImageSpec> {
    Some(v1::ImageSpec { image: image.to_owned(), ..Default::default() })
}

impl ImageService for CriClient {
    async fn image_status(&self, image: &str) -> Result<Option<ImageInfo>, DriverError> {
        let request = v1::ImageStatusRequest { image: spec(image), verbose: false };
        let call = self.ordinary("ImageStatus", image);
        match self.image(call, request, |mut c, r| async move { c.image_status(r).await }).await {
            Ok(answer) => Ok(answer.image.map(observed::image)),
            Err(error) if error.code == Code::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn pull(&self, image: &str, credential: Option<&Credential>) -> Result<ImageInfo, DriverError> {
        let auth = credential.map(|c| v1::AuthConfig {
            username: c.username.clone(),
            password: c.password.clone(),
            ..v1::AuthConfig::default()
        });
        let request = v1::PullImageRequest { image: spec(image), auth, sandbox_config: None };
        let call = Call { operation: "PullImage", object: image, deadline: None };
        let pulled = self.image(call, request, |mut c, r| async move { c.pull_image(r).await }).await?;
        self.image_status(&pulled.image_ref).await?.ok_or_else(|| {
            let message = format!("pulled as {:?}, which is gone again; pull it once more", pulled.image_ref);
            let error = CallError::unusable("PullImage", image, Class::Retryable { after_ms: 0 }, message);
            self.log_failure(&error.driver);
            error.into()
        })
    }

    async fn list_images(&self) -> Result<Vec<ImageInfo>, DriverError> {
        let call = self.ordinary("ListImages", "all");
        let request = v1::ListImagesRequest { filter: None };
        let answer = self.image(call, request, |mut c, r| async move { c.list_images(r).await }).await?;
        Ok(answer.images.into_iter().map(observed::image).collect())
    }

    async fn remove_image(&self, image: &str) -> Result<(), DriverError> {
        let request = v1::RemoveImageRequest { image: spec(image) };
        let call = self.ordinary("RemoveImage", image);
        match self.image(call, request, |mut c, r| async move { c.remove_image(r).await }).await {
            Ok(_) => Ok(()),
            Err(error) if error.code == Code::NotFound => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl ImagesInUse for CriClient {
    async fn images_in_use(&self) -> Result<BTreeSet<String>, DriverError> {
        let containers = self.list_containers(None).await?;
        let mut names = BTreeSet::new();
        let mut mounted = MountedImages::new();
        for c in containers {
            let images = self.mounted_by(&c.id).await?;
            let spec = c.image.unwrap_or_default();
            names.extend([c.image_id, c.image_ref, spec.image, spec.user_specified_image]);
            names.extend(images.iter().cloned());
            mounted.insert(c.id, images);
        }
        names.remove("");
        *self.mounted.lock() = mounted;
        Ok(names)
    }
}

impl CriClient {
    /// The images that a container mounts: lists do not say it. One that is gone meanwhile mounts none.
    async fn mounted_by(&self, container: &str) -> Result<Vec<String>, DriverError> {
        let known = self.mounted.lock().get(container).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let request = v1::ContainerStatusRequest { container_id: container.to_owned(), verbose: false };
        let call = self.ordinary("ContainerStatus", container);
        match self.runtime(call, request, |mut c, r| async move { c.container_status(r).await }).await {
            Ok(answer) => {
                let mounts = answer.status.unwrap_or_default().mounts;
                Ok(mounts.into_iter().filter_map(|m| m.image).map(|image| image.image).collect())
            }
            Err(error) if error.code == Code::NotFound => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}
