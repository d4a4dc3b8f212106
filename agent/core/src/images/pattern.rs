//! Patterns of registries: `*` within a part of the host name (upstream: pkg/credentialprovider/keyring.go,
//! `URLsMatch`).

/// Host and the path from its slash on.
pub(super) fn split(text: &str) -> (&str, &str) {
    text.find('/').map_or((text, ""), |at| text.split_at(at))
}

/// Name and port of a host.
fn port(host: &str) -> (&str, &str) {
    match host.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, port),
        _ => (host, ""),
    }
}

/// True if `place` is the image's registry, or a pattern of it (`*` within a part of the host's name), and
/// the image's path begins with the place's path.
pub(super) fn matches(place: &str, image: &str) -> bool {
    let ((host, path), (image_host, image_path)) = (split(place), split(image));
    let ((name, port_of), (image_name, image_port)) = (port(host), port(image_host));
    let (parts, image_parts): (Vec<&str>, Vec<&str>) =
        (name.split('.').collect(), image_name.split('.').collect());
    let part_fits = |(pattern, part): (&&str, &&str)| {
        glob::Pattern::new(pattern).is_ok_and(|pattern| pattern.matches(part))
    };
    port_of == image_port
        && parts.len() == image_parts.len()
        && image_path.starts_with(path)
        && parts.iter().zip(&image_parts).all(part_fits)
}
