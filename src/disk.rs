//! The one place through which records and checkpoints touch the file system.
//!
//! A [`Disk`] does what `std::fs` does. Given a [`Fault`] it also counts its operations and fails
//! the chosen ones, the same on every run: what a full or broken disk leaves behind can be tried
//! out, in tests and from the command line. Without a fault nothing is counted.

use std::fmt;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! operations {
    ($($(#[$about:meta])* $operation:ident $name:literal,)*) => {
        /// What can be done to a file system, and fail.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Operation {
            $($(#[$about])* $operation,)*
        }

        impl Operation {
            /// Every operation.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$operation),*];

            /// Its name, such as `create-folder`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$operation => $name,)* }
            }
        }
    };
}

operations! {
    /// Making a folder.
    CreateFolder "create-folder",
    /// Making a file that is not there.
    Create "create",
    /// Opening a file to write at its end.
    Append "append",
    /// Writing bytes, or taking some off the end of a file.
    Write "write",
    /// Waiting until a file's bytes have reached the disk.
    SyncFile "sync-file",
    /// Waiting until a folder's entries have.
    SyncFolder "sync-folder",
    /// Giving another name; what had that name goes.
    Rename "rename",
    /// Removing a file, or a folder with all that is in it.
    Remove "remove",
    /// Reading a file.
    Read "read",
    /// Listing a folder.
    List "list",
}

impl Operation {
    /// The operation of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.name() == name)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which operations fail, and with what.
///
/// A write that fails has written the first half of its bytes: so do real disks. With `count`
/// above 1, the operations after it fail as well; with `u64::MAX` and every operation, the file
/// system stays for ever as it was then, as a power cut would leave it but for what the system
/// had not yet written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Operations of this kind are counted and fail; `None` for those of every kind.
    pub operation: Option<Operation>,
    /// The first that fails, counted from 1.
    pub first: u64,
    /// How many fail.
    pub count: u64,
    /// What they fail with.
    pub kind: io::ErrorKind,
}

impl Fault {
    /// The `first` operation of a kind, or of any, and no other finds the disk full.
    pub fn full(operation: Option<Operation>, first: u64) -> Self {
        Self { operation, first, count: 1, kind: io::ErrorKind::StorageFull }
    }
}

/// A file system, perhaps one that fails at times. Clones share their counts.
///
/// A method that fails returns the file system's error, or the one that the [`Fault`] asks for. Only
/// what a failure means beyond that stands at the method.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    failing: Option<Arc<Failing>>,
}

#[derive(Debug)]
struct Failing {
    fault: Fault,
    seen: AtomicU64,
    failed: AtomicU64,
}

impl Disk {
    /// A disk that fails as `fault` says.
    pub fn failing(fault: Fault) -> Self {
        let (seen, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { failing: Some(Arc::new(Failing { fault, seen, failed })) }
    }

    /// How many operations have failed by the fault; 0 without one.
    pub fn failed(&self) -> u64 {
        self.failing.as_ref().map_or(0, |failing| failing.failed.load(Ordering::Relaxed))
    }

    /// How many operations of the fault's kind have been tried; 0 without a fault.
    pub fn tried(&self) -> u64 {
        self.failing.as_ref().map_or(0, |failing| failing.seen.load(Ordering::Relaxed))
    }

    /// Makes a folder that is not there yet.
    pub fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.check(Operation::CreateFolder)?;
        fs::create_dir(path)
    }

    /// Makes a folder and those above it, as far as they are missing.
    pub fn create_folders(&self, path: &Path) -> io::Result<()> {
        self.check(Operation::CreateFolder)?;
        fs::create_dir_all(path)
    }

    /// Makes a file that is not there yet.
    pub fn create(&self, path: &Path) -> io::Result<File> {
        self.check(Operation::Create)?;
        let file = fs::File::options().write(true).create_new(true).open(path)?;
        Ok(File { file, disk: self.clone() })
    }

    /// Opens a file that is there, to write at its end.
    pub fn append(&self, path: &Path) -> io::Result<File> {
        self.check(Operation::Append)?;
        let file = fs::File::options().append(true).open(path)?;
        Ok(File { file, disk: self.clone() })
    }

    /// Writes a file that appears whole or not at all, even when the power goes: under another
    /// name first, to the disk, then under its own in place of what was there.
    ///
    /// # Errors
    /// When any of these steps fails; what was there is then untouched, unless it was the last: then the new content is there,
    /// and a power cut may take it back.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.clear_partial(path)?;
        let (partial, mut file) = self.create_partial(path)?;
        let mut written = || {
            file.write_all(bytes)?;
            file.sync()?;
            self.rename(&partial, path)
        };
        written().inspect_err(|_| {
            // What it holds is of no use, and takes room that there may be none of.
            let _ = fs::remove_file(&partial);
        })?;
        self.sync_folder(path.parent().unwrap_or(Path::new("")))
    }

    /// Makes a file beside `path` that is locked while it is written: nobody else writes it or clears it
    /// away.
    fn create_partial(&self, path: &Path) -> io::Result<(PathBuf, File)> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}-{number}.partial", std::process::id());
            let partial = path.with_added_extension(name);
            let file = match self.create(&partial) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file?,
            };
            // Another process may have cleared it away in the moment before it was locked.
            let taken = matches!(file.file.try_lock(), Err(fs::TryLockError::WouldBlock));
            if !taken && partial.exists() {
                return Ok((partial, file));
            }
        }
    }

    /// Removes what processes that were stopped while they replaced the file have left beside it. Those
    /// that are still at it hold a lock.
    fn clear_partial(&self, path: &Path) -> io::Result<()> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let start = format!("{}.", name.to_string_lossy());
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !(name.starts_with(&start) && name.ends_with(".partial")) {
                continue;
            }
            // The lock is held until the file is gone: its writer sees that it has to make another.
            let left = fs::File::open(entry.path()).ok().filter(|file| file.try_lock().is_ok());
            let removed = left.as_ref().map_or(Ok(()), |_| self.remove_file(&entry.path()));
            if let Err(error) = removed
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits until the bytes of a file that another handle has written have reached the disk.
    pub fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.check(Operation::SyncFile)?;
        fs::File::open(path)?.sync_all()
    }

    /// Waits until a folder's entries have reached the disk.
    pub fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.check(Operation::SyncFolder)?;
        // Elsewhere folders cannot be opened, and renaming is as durable as it will be.
        if cfg!(unix) {
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            fs::File::open(path)?.sync_all()?;
        }
        Ok(())
    }

    /// Gives a file or folder another name; a file of that name goes.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(Operation::Rename)?;
        fs::rename(from, to)
    }

    /// Removes a file.
    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.check(Operation::Remove)?;
        fs::remove_file(path)
    }

    /// Removes a folder with everything in it.
    ///
    /// # Errors
    /// When something in it cannot be removed; the rest may be gone.
    pub fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.check(Operation::Remove)?;
        fs::remove_dir_all(path)
    }

    /// Whether another handle has a file's lock. Nothing is made or changed by asking.
    pub fn is_locked(&self, path: &Path) -> bool {
        let tried = fs::File::open(path).map(|file| file.try_lock_shared());
        matches!(tried, Ok(Err(fs::TryLockError::WouldBlock)))
    }

    /// Takes a file's lock, making the file if it is not there. The lock ends with the handle, or
    /// with the process, however that ends.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when another handle has it; else when the file cannot be
    /// opened.
    pub fn lock(&self, path: &Path) -> io::Result<Lock> {
        self.check(Operation::Create)?;
        let file = fs::File::options().create(true).append(true).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Lock { _file: file }),
            Err(fs::TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Reads a file of at most `limit` bytes.
    ///
    /// # Errors
    /// When it cannot be read, or is longer ([`io::ErrorKind::FileTooLarge`]).
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.check(Operation::Read)?;
        let file = fs::File::open(path)?;
        let mut bytes = Vec::new();
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            let message = format!("longer than the {limit} bytes that it may have");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        Ok(bytes)
    }

    /// Opens a file to be read line by line.
    pub fn lines(&self, path: &Path) -> io::Result<io::BufReader<fs::File>> {
        self.check(Operation::Read)?;
        fs::File::open(path).map(io::BufReader::new)
    }

    /// What is in a folder, in order of name.
    pub fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        self.check(Operation::List)?;
        let entries = fs::read_dir(path)?.map(|entry| Ok(entry?.path()));
        let mut paths = entries.collect::<io::Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    }

    /// Fails if it is this operation's turn.
    fn check(&self, operation: Operation) -> io::Result<()> {
        let Some(failing) = &self.failing else { return Ok(()) };
        let fault = &failing.fault;
        if fault.operation.is_some_and(|only| only != operation) {
            return Ok(());
        }
        let number = failing.seen.fetch_add(1, Ordering::Relaxed) + 1;
        if number < fault.first || number - fault.first >= fault.count {
            return Ok(());
        }
        failing.failed.fetch_add(1, Ordering::Relaxed);
        let what = if fault.operation.is_some() { "" } else { "file operation, a " };
        let message = format!("{} (injected: {what}{operation}, number {number})", fault.kind);
        Err(io::Error::new(fault.kind, message))
    }
}

/// A file open for writing. Nothing is held back in this process.
#[derive(Debug)]
pub struct File {
    file: fs::File,
    disk: Disk,
}

/// A lock that is held.
#[derive(Debug)]
pub struct Lock {
    _file: fs::File,
}

impl File {
    /// Waits until what was written has reached the disk.
    ///
    /// # Errors
    /// When it cannot be made to: then nothing is known about what was written.
    pub fn sync(&self) -> io::Result<()> {
        self.disk.check(Operation::SyncFile)?;
        self.file.sync_all()
    }

    /// How many bytes the file has.
    ///
    /// # Errors
    /// When the file system does not tell.
    pub fn length(&self) -> io::Result<u64> {
        self.file.metadata().map(|about| about.len())
    }

    /// Takes off everything after the first `length` bytes. What is written next follows these.
    ///
    /// # Errors
    /// When the file system does not do it.
    pub fn cut(&mut self, length: u64) -> io::Result<()> {
        self.disk.check(Operation::Write)?;
        self.file.set_len(length)?;
        self.file.seek(SeekFrom::Start(length))?;
        Ok(())
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.disk.check(Operation::Write) {
            // A disk that fills up takes what it still can.
            let _ = self.file.write_all(&bytes[..bytes.len() / 2]);
            return Err(error);
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests;
