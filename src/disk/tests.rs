use super::*;

#[test]
fn the_chosen_operations_fail_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::failing(Fault {
        operation: Some(Operation::Write),
        first: 2,
        count: 2,
        kind: io::ErrorKind::StorageFull,
    });
    let path = folder.path().join("a");
    let mut file = disk.create(&path).unwrap();
    let wrote: Vec<bool> = (0..5).map(|_| file.write_all(b"1234").is_ok()).collect();
    assert_eq!(wrote, [true, false, false, true, true]);
    assert_eq!((disk.failed(), disk.tried()), (2, 5));
    // Half of what failed has reached the file.
    assert_eq!(fs::read_to_string(&path).unwrap(), "1234121212341234");
}

#[test]
fn what_is_written_after_a_cut_follows_what_was_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let disk = Disk::default();
    let mut made = disk.create(&path).unwrap();
    made.write_all(b"123456").unwrap();
    made.cut(4).unwrap();
    made.write_all(b"x").unwrap();
    let mut opened = disk.append(&path).unwrap();
    assert_eq!(opened.length().unwrap(), 5);
    opened.cut(2).unwrap();
    opened.write_all(b"y").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "12y");
}

#[test]
fn every_operation_has_its_turn() {
    let mut reached = Vec::new();
    for k in 1.. {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::failing(Fault::full(None, k));
        let all = || -> io::Result<()> {
            let inner = folder.path().join("inner");
            disk.create_folder(&inner)?;
            disk.create(&inner.join("lines"))?.write_all(b"a")?;
            disk.append(&inner.join("lines"))?.write_all(b"b")?;
            disk.replace(&inner.join("lines"), b"new")?;
            assert_eq!(disk.read(&inner.join("lines"), 3)?, b"new");
            assert_eq!(disk.list(&inner)?, [inner.join("lines")]);
            disk.remove_folder(&inner)
        };
        match all() {
            Ok(()) => break,
            Err(error) => reached.push(error.to_string()),
        }
    }
    for operation in Operation::ALL {
        let name = format!("a {operation}, number");
        assert!(reached.iter().any(|error| error.contains(&name)), "{operation}: {reached:?}");
        assert_eq!(Operation::from_name(operation.name()), Some(operation));
    }
}

#[test]
fn a_replacement_that_fails_leaves_what_was_there() {
    for k in 1..=5 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "old").unwrap();
        let disk = Disk::failing(Fault::full(None, k));
        let failed = disk.replace(&path, b"newer").is_err();
        let found = fs::read_to_string(&path).unwrap();
        // The fifth is the folder's sync: the new content is there, if perhaps not for ever.
        assert!(failed && found == if k < 5 { "old" } else { "newer" }, "{k}: {found}");
        let left = Disk::default().list(folder.path()).unwrap();
        assert_eq!(left, std::slice::from_ref(&path), "{k}");
        // What a killed process left is cleared away.
        fs::write(folder.path().join("a.partial"), "ne").unwrap();
        Disk::default().replace(&path, b"newest").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "newest");
        let left = Disk::default().list(folder.path()).unwrap();
        assert_eq!(left, std::slice::from_ref(&path), "{k}");
    }
}

#[test]
fn what_another_process_is_writing_is_left_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, path) = (Disk::default(), folder.path().join("a"));
    let (theirs, mut file) = disk.create_partial(&path).unwrap();
    file.write_all(b"theirs").unwrap();
    // Whatever it is called, as long as its writer holds it.
    let other = folder.path().join("a.partial");
    let held = disk.lock(&other).unwrap();
    disk.replace(&path, b"ours").unwrap();
    assert!(theirs.exists() && other.exists());
    fs::rename(&theirs, &path).unwrap();
    drop((file, held));
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
    let each = |n: usize| disk.replace(&path, n.to_string().repeat(1000).as_bytes()).unwrap();
    std::thread::scope(|scope| {
        (0..8).for_each(|n| drop(scope.spawn(move || (0..20).for_each(|_| each(n)))));
    });
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.len() == 1000 && text.bytes().all(|b| b == text.as_bytes()[0]));
    assert_eq!(disk.list(folder.path()).unwrap(), [path]);
}

#[test]
fn one_at_a_time_holds_a_lock() {
    let folder = tempfile::tempdir().unwrap();
    let (disk, path) = (Disk::default(), folder.path().join("lock"));
    let lock = disk.lock(&path).unwrap();
    assert_eq!(disk.lock(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert!(disk.is_locked(&path));
    drop(lock);
    assert!(!disk.is_locked(&path) && !disk.is_locked(&path.with_file_name("none")));
    disk.lock(&path).unwrap();
}

#[test]
fn a_file_longer_than_allowed_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    fs::write(&path, [7; 100]).unwrap();
    assert_eq!(Disk::default().read(&path, 100).unwrap().len(), 100);
    let error = Disk::default().read(&path, 99).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
}
