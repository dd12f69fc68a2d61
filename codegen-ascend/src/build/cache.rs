//! Compiled files of this host, found again by what they were compiled from.
//!
//! Their names are `NAME-CHECKSUM.o`, where the name says what they are of and the checksum what must be in
//! them: a file that was cut short or changed is found out and made again. Files appear whole or not at all,
//! and one process at a time makes them.

use super::{BuildError, file};
use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

/// Digits of a checksum in a name.
const DIGITS: usize = 16;

/// A folder of compiled files.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.folder.display().fmt(f)
    }
}

impl Cache {
    pub(crate) fn at(folder: PathBuf) -> Self {
        // Libraries are loaded and compilers run by absolute paths.
        Self { folder: std::path::absolute(&folder).unwrap_or(folder) }
    }

    #[cfg(test)]
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Of `names`, those that are there and whole.
    pub(crate) fn find(&self, names: &[String]) -> BTreeMap<String, PathBuf> {
        self.files(names).into_iter().filter(|(_, path)| is_whole(path)).collect()
    }

    /// Files called `names`, whatever is in them.
    fn files(&self, names: &[String]) -> BTreeMap<String, PathBuf> {
        // A folder that is not there has none.
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let files = entries.filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let (name, checksum) = file.strip_suffix(".o")?.rsplit_once('-')?;
            let wanted = checksum.len() == DIGITS && names.iter().any(|n| n == name);
            wanted.then(|| (name.to_owned(), entry.path()))
        });
        files.collect()
    }

    /// What `names` were compiled to; `make` compiles those that are missing into the folder that it is
    /// given and returns their files, by name.
    ///
    /// # Errors
    /// Those of `make`; a folder that cannot be written.
    pub(crate) fn find_or_make(
        &self,
        names: &[String],
        make: impl FnOnce(&Path, &[String]) -> Result<BTreeMap<String, PathBuf>, BuildError>,
    ) -> Result<BTreeMap<String, PathBuf>, BuildError> {
        let mut found = self.find(names);
        if names.iter().all(|n| found.contains_key(n)) {
            return Ok(found);
        }
        self.writable()?;
        let _lock = Lock::take(&self.folder.join("lock"))?;
        // Another process may have made them meanwhile.
        found = self.find(names);
        let missing: Vec<String> =
            names.iter().filter(|n| !found.contains_key(*n)).cloned().collect();
        if missing.is_empty() {
            return Ok(found);
        }
        for (name, path) in self.files(&missing) {
            tracing::warn!(file = %path.display(), "{name} is damaged and compiled again");
            fs::remove_file(&path).map_err(file(&path))?;
        }
        let part = self.folder.join("part");
        if part.exists() {
            // Of a process that was stopped: whoever makes files holds the lock.
            fs::remove_dir_all(&part).map_err(file(&part))?;
        }
        fs::create_dir(&part).map_err(file(&part))?;
        let made = make(&part, &missing).and_then(|made| {
            let kept = |(name, path): (String, PathBuf)| {
                let place = self.keep(&part, &name, &path)?;
                Ok((name, place))
            };
            made.into_iter().map(kept).collect()
        });
        // What is left of it is removed before the next attempt at the latest.
        let _ = fs::remove_dir_all(&part);
        let made: BTreeMap<String, PathBuf> = made?;
        found.extend(made);
        Ok(found)
    }

    /// Puts a file in its place. It may be that of several names.
    fn keep(&self, part: &Path, name: &str, made: &Path) -> Result<PathBuf, BuildError> {
        let place = self.folder.join(format!("{name}-{}.o", checksum(made).map_err(file(made))?));
        let link = part.join("kept");
        fs::hard_link(made, &link).map_err(file(&link))?;
        fs::rename(&link, &place).map_err(file(&place))?;
        Ok(place)
    }

    /// That files can be made here.
    ///
    /// # Errors
    /// [`BuildError::Cache`].
    pub(crate) fn writable(&self) -> Result<(), BuildError> {
        let probe = self.folder.join(format!(".{}", std::process::id()));
        let written = fs::create_dir_all(&self.folder).and_then(|()| fs::write(&probe, ""));
        // Only a probe.
        let _ = fs::remove_file(&probe);
        written.map_err(|source| BuildError::Cache { folder: self.folder.clone(), source })
    }
}

fn checksum(path: &Path) -> io::Result<String> {
    Ok(short_hash([fs::read(path)?.as_slice()]))
}

/// What names tell apart files by.
pub(crate) fn short_hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = artifact::Hasher::default();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finish().to_string()[..DIGITS].to_owned()
}

fn is_whole(path: &Path) -> bool {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    checksum(path).is_ok_and(|checksum| name.ends_with(&checksum))
}

/// One process at a time.
struct Lock(File);

impl Lock {
    fn take(path: &Path) -> Result<Self, BuildError> {
        let lock = File::create(path).map_err(file(path))?;
        // SAFETY: the descriptor is open for as long as the file.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) } != 0 {
            return Err(file(path)(io::Error::last_os_error()));
        }
        Ok(Self(lock))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // SAFETY: as in `take`. Closing the file would do it too.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}
