"""A load of the driver is another after each boot and each load of the kernel module."""

from pathlib import Path

from deviceplugin.driver.load import current_load


def test_a_boot_and_a_load_of_the_module_change_it(tmp_path: Path) -> None:
    boot, module = tmp_path / "boot_id", tmp_path / "nvidia"
    found = [current_load(boot, module)]
    boot.write_text("0f9c\n")
    found.append(current_load(boot, module))
    module.mkdir()
    found.append(current_load(boot, module))
    assert current_load(boot, module) == found[-1]
    module.rename(tmp_path / "unloaded")
    module.mkdir()
    found.append(current_load(boot, module))
    boot.write_text("1a2b\n")
    found.append(current_load(boot, module))
    assert len(set(found)) == len(found)
    assert current_load() == current_load()
