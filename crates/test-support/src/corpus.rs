//! The seeds of the fuzz targets, which the ordinary tests try as well.

use std::path::Path;

/// Hands each seed of a fuzz target to what the target checks. `crate_folder` is the crate's `CARGO_MANIFEST_DIR`.
///
/// # Panics
/// If there are no seeds, or they cannot be read.
pub fn corpus(crate_folder: &str, target: &str, check: impl Fn(&[u8])) {
    let folder = Path::new(crate_folder).join("../../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("the target has a folder of seeds") {
        let path = entry.expect("the folder can be read").path();
        // Files without a dot in their names are what a fuzzer left there.
        if path.extension().is_some() {
            println!("{}", path.display());
            check(&std::fs::read(path).expect("a seed can be read"));
            count += 1;
        }
    }
    assert!(count > 0, "there are seeds for {target}");
}
