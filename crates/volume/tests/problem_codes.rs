//! Every problem that the workspace's code can name is in the list for people.

use std::collections::BTreeSet;
use std::path::Path;

/// The codes in `Problem::new("Code", …)` of one source file.
fn codes(source: &str) -> impl Iterator<Item = &str> {
    source.split("Problem::new(").skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
}

fn walk(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") && !matches!(name.as_str(), "tests.rs" | "testing.rs")
        {
            let text = std::fs::read_to_string(&path).unwrap();
            // What follows in a file are its tests.
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            found.extend(codes(code).map(str::to_owned));
        }
    }
}

#[test]
fn every_code_is_documented() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = BTreeSet::new();
    for one in std::fs::read_dir(crates).unwrap() {
        walk(&one.unwrap().path().join("src"), &mut found);
    }
    assert!(found.contains("OtherMount") && found.len() > 20, "{found:?}");
    let list = std::fs::read_to_string(crates.parent().unwrap().join("docs/problems.md")).unwrap();
    let missing: Vec<_> = found.iter().filter(|code| !list.contains(&format!("`{code}`"))).collect();
    assert!(missing.is_empty(), "docs/problems.md lacks {missing:?}");
}
