"""A finished model on disk: its folder, its card, its weights.

What takes or makes modules imports PyTorch when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heed.model_folder.card import IMPORTED_FROM as IMPORTED_FROM
from heed.model_folder.card import UNKNOWN_LANGUAGES as UNKNOWN_LANGUAGES
from heed.model_folder.card import ModelCard as ModelCard
from heed.model_folder.card import ModelConfig as ModelConfig
from heed.model_folder.card import model_card as model_card
from heed.model_folder.card import read_config as read_config
from heed.model_folder.folder import MODEL_FILES as MODEL_FILES
from heed.model_folder.folder import MODEL_FOLDER_NAMES as MODEL_FOLDER_NAMES
from heed.model_folder.folder import ModelFolder as ModelFolder
from heed.model_folder.folder import copy_model as copy_model
from heed.model_folder.folder import folder_of as folder_of
from heed.model_folder.folder import load_model as load_model
from heed.model_folder.folder import replace_card as replace_card

if TYPE_CHECKING:
    from heed.model_folder.modules import load_weights as load_weights
    from heed.model_folder.modules import read_weights as read_weights
    from heed.model_folder.modules import rows_of as rows_of
    from heed.model_folder.modules import save_model as save_model
    from heed.model_folder.modules import shared_weights as shared_weights
    from heed.model_folder.modules import write_model as write_model
    from heed.model_folder.modules import write_weights as write_weights
else:

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module("heed.model_folder.modules"), name)
