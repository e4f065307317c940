"""A finished model on disk: its folder, its card, its weights."""

from heed.model_folder.card import IMPORTED_FROM as IMPORTED_FROM
from heed.model_folder.card import UNKNOWN_LANGUAGES as UNKNOWN_LANGUAGES
from heed.model_folder.card import ModelCard as ModelCard
from heed.model_folder.card import ModelConfig as ModelConfig
from heed.model_folder.card import model_card as model_card
from heed.model_folder.card import read_config as read_config
from heed.model_folder.folder import MODEL_FILES as MODEL_FILES
from heed.model_folder.folder import MODEL_FOLDER_NAMES as MODEL_FOLDER_NAMES
from heed.model_folder.folder import ModelFolder as ModelFolder
from heed.model_folder.folder import load_model as load_model
from heed.model_folder.folder import replace_card as replace_card
from heed.model_folder.folder import save_model as save_model
from heed.model_folder.folder import write_model as write_model
from heed.model_folder.weights import load_weights as load_weights
from heed.model_folder.weights import model_of as model_of
from heed.model_folder.weights import read_weights as read_weights
from heed.model_folder.weights import shared_weights as shared_weights
from heed.model_folder.weights import write_weights as write_weights
