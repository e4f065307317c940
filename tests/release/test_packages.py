"""The packages of one commit are the same files, whoever builds them and when."""

import os
import tarfile

from release.packages import committed_at, fix_times


def test_the_source_keeps_neither_the_time_nor_the_user_of_its_build(tmp_path):
    built = []
    for time in (1_000_000_000, 1_500_000_000):
        (tmp_path / "heed").mkdir(exist_ok=True)
        (tmp_path / "heed" / "model.py").write_text("d_model = 512\n")
        os.utime(tmp_path / "heed" / "model.py", (time, time))
        path = tmp_path / f"heed-{time}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            archive.add(tmp_path / "heed", "heed")
        fix_times(path)
        built.append(path.read_bytes())
    assert built[0] == built[1]
    with tarfile.open(path) as archive:
        file = archive.getmember("heed/model.py")
        assert (file.mtime, file.uid, file.uname) == (int(committed_at()), 0, "")
        assert archive.extractfile(file).read() == b"d_model = 512\n"
