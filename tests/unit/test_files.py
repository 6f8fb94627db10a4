import pytest

from normscope.files import replacing


def test_replacing_keeps_the_old_file_when_the_block_fails(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")

    def interrupted():
        with replacing(path) as unfinished:
            unfinished.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["result.json"]


def test_replacing_writes_the_new_content_and_makes_the_folder(tmp_path):
    path = tmp_path / "a" / "b" / "result.json"
    with replacing(path) as unfinished:
        assert unfinished.suffix == ".json"
        unfinished.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert [found.name for found in path.parent.iterdir()] == ["result.json"]
