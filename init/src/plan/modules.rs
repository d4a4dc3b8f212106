//! The initrd's module list: text in, load steps out.
//!
//! Seam: docs/architecture.md, "Initrd" (`/etc/orlop/modules`, one absolute path per line, dependencies first).

use super::step::Step;

/// Load steps in the order of the list; blank lines and `#` comments are skipped.
#[must_use]
pub fn plan(list: &str) -> Vec<Step> {
    list.lines()
        .map(|line| line.split('#').next().unwrap_or("").trim())
        .filter(|line| !line.is_empty())
        .map(|path| Step::LoadModule {
            path: path.to_string(),
            compressed: [".xz", ".zst", ".gz"].iter().any(|suffix| path.ends_with(suffix)),
        })
        .collect()
}

/// `dm-verity` for `/lib/modules/6.12/kernel/drivers/md/dm-verity.ko.xz`.
#[must_use]
pub fn name(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list() {
        let text = "# order matters\n/lib/modules/6/dm-mod.ko\n\n /lib/modules/6/dm-verity.ko.xz # root\n/m/erofs.ko.zst";
        let load = |path: &str, compressed| Step::LoadModule { path: path.into(), compressed };
        let want = [
            load("/lib/modules/6/dm-mod.ko", false),
            load("/lib/modules/6/dm-verity.ko.xz", true),
            load("/m/erofs.ko.zst", true),
        ];
        assert_eq!(plan(text), want);
        assert_eq!(name("/lib/modules/6/dm-verity.ko.xz"), "dm-verity");
    }
}
